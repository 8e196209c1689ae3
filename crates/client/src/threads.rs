//! The shim's own threads in the program: they take no signals, because the program's handlers run on the program's threads.
#![expect(unsafe_code, reason = "masks of signals are C's")]

use std::io;
use std::num::NonZero;
use std::os::unix::fs::MetadataExt as _;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, Scope, ScopedJoinHandle};

/// Starts a thread with a stack of `stack` bytes that takes no signals.
///
/// # Errors
///
/// The system refuses a thread.
pub fn start(name: &str, stack: usize, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let builder = thread::Builder::new().name(name.to_owned()).stack_size(stack);
    with_signals_blocked(|| builder.spawn(body)).map(drop)
}

/// Starts a thread that takes no signals in a scope, which waits for its end.
///
/// # Errors
///
/// The system refuses a thread.
pub fn start_in<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: &str,
    stack: usize,
    body: impl FnOnce() -> T + Send + 'scope,
) -> io::Result<ScopedJoinHandle<'scope, T>> {
    let builder = thread::Builder::new().name(name.to_owned()).stack_size(stack);
    with_signals_blocked(|| builder.spawn_scoped(scope, body))
}

/// Lets a link send without locked instructions, which `enable` does: at once if that takes no time, otherwise in a thread that
/// then ends.
pub fn enable_fast_path(enable: impl FnOnce() + Send + 'static) {
    const BARRIER_STACK_BYTES: usize = 64 << 10;
    if is_only_one() {
        enable();
    } else {
        // Without the thread, calls stay as they were.
        let _ = start("katydid-barrier", BARRIER_STACK_BYTES, enable);
    }
}

/// Returns whether the calling thread is the only one of the process, as far as the system says.
fn is_only_one() -> bool {
    /// Links of a folder without subfolders.
    const LINKS_OF_EMPTY_FOLDER: u64 = 2;
    std::fs::metadata("/proc/self/task").is_ok_and(|tasks| tasks.nlink() == LINKS_OF_EMPTY_FOLDER + 1)
}

/// Fewest bytes that are worth a thread. It takes some 30 µs to start, in which a core copies a quarter of that.
const MIN_THREAD_BYTES: u64 = 1 << 20;
/// Most helper threads at a time, in the whole process. Each of them has a thread id on the link and a staging piece.
const MAX_HELPER_THREADS: usize = 7;
/// Alignment of the parts of a copy, in bytes.
const PART_ALIGN_BYTES: u64 = 64 << 10;
/// Stacks of helper threads, in bytes: they copy, and write frames.
const HELPER_STACK_BYTES: usize = 256 << 10;

/// Threads that a copy may start in addition to its own.
#[derive(Debug)]
pub struct Helpers(usize);

/// Helper threads in use by all copies.
static HELPER_THREADS: AtomicUsize = AtomicUsize::new(0);

impl Helpers {
    /// Returns how many helpers pay for `size` bytes, with `threads` in all at most, including the copy's own.
    #[must_use]
    pub fn worth(size: u64, threads: usize) -> usize {
        (size / MIN_THREAD_BYTES).min(threads as u64).saturating_sub(1) as usize
    }

    /// Takes at most `requested` of the helpers that other copies have left. A copy keeps them from others, so a copy that has to
    /// wait for its turn takes them only then.
    #[must_use]
    pub fn take(requested: usize) -> Self {
        let helpers_before = HELPER_THREADS.fetch_add(requested, Ordering::Relaxed);
        let granted = requested.min(MAX_HELPER_THREADS.saturating_sub(helpers_before));
        HELPER_THREADS.fetch_sub(requested - granted, Ordering::Relaxed);
        Self(granted)
    }

    /// Helper threads that this value has reserved.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0
    }

    /// Starts them, as many as the system allows; each does `work`.
    pub fn start<'scope, T: Send + 'scope>(
        &self,
        scope: &'scope Scope<'scope, '_>,
        work: impl Fn() -> T + Send + Copy + 'scope,
    ) -> Vec<ScopedJoinHandle<'scope, T>> {
        (0..self.0).map_while(|_| start_in(scope, "katydid copy", HELPER_STACK_BYTES, work).ok()).collect()
    }

    /// Runs `step` with offset and length of each part of `size` bytes, none larger than `most`, in this thread and the helpers.
    /// Their order does not matter.
    ///
    /// # Errors
    ///
    /// As [`Helpers::run`].
    pub fn share_out<E: Send + Copy>(
        &self,
        (size, most): (u64, u64),
        lost: E,
        step: &(dyn Fn(u64, u64) -> Result<(), E> + Sync),
    ) -> Result<(), E> {
        let each = size.div_ceil(self.0 as u64 + 1).next_multiple_of(PART_ALIGN_BYTES).min(most).max(1);
        self.run(size.div_ceil(each), lost, &|index| {
            let at = index * each;
            step(at, each.min(size - at))
        })
    }

    /// Runs `step` with each number below `count`, in this thread and the helpers. Their order does not matter.
    ///
    /// # Errors
    ///
    /// The first error of the threads; `lost` if a thread panicked.
    pub fn run<E: Send + Copy>(
        &self,
        count: u64,
        lost: E,
        step: &(dyn Fn(u64) -> Result<(), E> + Sync),
    ) -> Result<(), E> {
        let next = AtomicU64::new(0);
        self.work(lost, &|| {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= count {
                    return Ok(());
                }
                step(index)?;
            }
        })
    }

    /// Runs `work` in this thread and the helpers, which share the work among themselves.
    ///
    /// # Errors
    ///
    /// As [`Helpers::run`].
    pub fn work<E: Send + Copy>(&self, lost: E, work: &(dyn Fn() -> Result<(), E> + Sync)) -> Result<(), E> {
        thread::scope(|scope| {
            // Without a helper, this thread does more.
            let help = self.start(scope, work);
            let own = work();
            help.into_iter().fold(own, |so_far, thread| so_far.and(thread.join().unwrap_or(Err(lost))))
        })
    }
}

impl Drop for Helpers {
    fn drop(&mut self) {
        HELPER_THREADS.fetch_sub(self.0, Ordering::Relaxed);
    }
}

/// Returns how many threads of this process can run at a time.
pub fn processors() -> usize {
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| thread::available_parallelism().map_or(1, NonZero::get))
}

/// Runs `start` with all signals blocked; threads that it starts inherit the mask.
fn with_signals_blocked<R>(start: impl FnOnce() -> R) -> R {
    // SAFETY: both sets are locals, filled by the calls before they are read.
    unsafe {
        let (mut all_signals, mut old_mask) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all_signals);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all_signals, &mut old_mask);
        let result = start();
        libc::pthread_sigmask(libc::SIG_SETMASK, &old_mask, std::ptr::null_mut());
        result
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Returns how many of the first 31 signals the calling thread blocks.
    fn blocked() -> usize {
        // SAFETY: the set is a local that the call fills.
        unsafe {
            let mut mask = std::mem::zeroed();
            libc::pthread_sigmask(libc::SIG_SETMASK, std::ptr::null(), &mut mask);
            (1..32).filter(|signal| libc::sigismember(&mask, *signal) == 1).count()
        }
    }

    #[test]
    fn a_test_is_never_alone() {
        assert!(!thread::spawn(is_only_one).join().unwrap());
    }

    #[test]
    fn helpers_are_limited_together_and_given_back() {
        let some = Helpers::take(MAX_HELPER_THREADS - 1);
        let (full, none) = (Helpers::take(MAX_HELPER_THREADS), Helpers::take(1));
        assert!(some.0 + full.0 + none.0 <= MAX_HELPER_THREADS);
        let worth = [(MIN_THREAD_BYTES, 9), (100 * MIN_THREAD_BYTES, 3), (3 * MIN_THREAD_BYTES, 9)]
            .map(|(size, threads)| Helpers::worth(size, threads));
        assert_eq!(worth, [0, 2, 2]);
    }

    #[test]
    fn every_number_is_done_once_and_a_failure_is_the_result() {
        let helpers = Helpers::take(3);
        let numbers = Mutex::new(Vec::new());
        let step = |index| {
            numbers.lock().unwrap().push(index);
            Ok(())
        };
        assert_eq!(helpers.run(100, (), &step), Ok(()));
        let mut numbers = numbers.into_inner().unwrap();
        numbers.sort_unstable();
        assert_eq!(numbers, (0..100).collect::<Vec<u64>>());
        let failing = |index| if index == 7 { Err(()) } else { Ok(()) };
        assert_eq!((helpers.run(8, (), &failing), helpers.run(0, (), &failing)), (Err(()), Ok(())));
    }

    #[test]
    fn a_part_that_fails_is_the_failure_of_all() {
        let helpers = Helpers::take(2);
        let odd = |at: u64, _: u64| if at == 2 * PART_ALIGN_BYTES { Err(at) } else { Ok(()) };
        assert_eq!(helpers.share_out((9 * PART_ALIGN_BYTES, PART_ALIGN_BYTES), 0, &odd), Err(2 * PART_ALIGN_BYTES));
    }

    #[test]
    fn a_shim_thread_takes_no_signals_and_program_threads_do_as_before() {
        let old_mask = blocked();
        let (sender, receiver) = std::sync::mpsc::channel();
        start("test", 256 << 10, move || sender.send(blocked()).unwrap()).unwrap();
        // Neither SIGKILL nor SIGSTOP can be blocked.
        assert_eq!(receiver.recv().unwrap(), 29);
        assert_eq!(blocked(), old_mask);
    }
}

//! Threads that help to copy: a core moves bytes between two places in memory at a sixth of the rate of a GPU's link.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;

use katydid_client::threads;
use katydid_cuda_sys::CUresult;

use crate::stream;
use crate::transfer::Way;

/// Fewest bytes that are worth a thread: it takes some 30 µs to start, in which a core copies a quarter of that.
const SHARE: u64 = 1 << 20;
/// Most threads that help to copy at a time, in the whole process: each of them has a seat on the link and a piece.
const MOST_HELPERS: usize = 7;
/// As many threads as processors.
pub(crate) const ALL: usize = usize::MAX;
/// Their stacks, in bytes: they copy, and write frames.
const STACK: usize = 256 << 10;

/// Threads that this copy may start.
pub(crate) struct Helpers(usize);

/// Those that other copies have.
static HELPERS: AtomicUsize = AtomicUsize::new(0);

impl Helpers {
    /// As many as pay for `size` bytes, so that no more than `threads` copy in all, this one among them.
    pub(crate) fn for_copy(way: Way, size: u64, threads: usize) -> Self {
        // A thread's own default stream is, on the wire too, that of whoever names it.
        let wanted = if stream::is_of_thread(way.stream) { 0 } else { (size / SHARE).saturating_sub(1) };
        // More than there are processors are no help but on a network.
        let helpful = if threads == ALL { threads::processors() } else { threads }.saturating_sub(1);
        Self::take(wanted.min(helpful as u64) as usize)
    }

    /// Those that copy, the calling one among them.
    pub(crate) fn threads(&self) -> u64 {
        self.0 as u64 + 1
    }

    /// As many as are left of `wanted`.
    fn take(wanted: usize) -> Self {
        let before = HELPERS.fetch_add(wanted, Ordering::Relaxed);
        let granted = wanted.min(MOST_HELPERS.saturating_sub(before));
        HELPERS.fetch_sub(wanted - granted, Ordering::Relaxed);
        Self(granted)
    }

    /// Runs `step` with each number below `count`. Their order does not matter to anybody, since all of them lie between the
    /// same two calls of this thread.
    pub(crate) fn run(&self, count: u64, step: &(dyn Fn(u64) -> Result<(), CUresult> + Sync)) -> Result<(), CUresult> {
        let next = AtomicU64::new(0);
        let work = || {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= count {
                    return Ok(());
                }
                step(index)?;
            }
        };
        thread::scope(|scope| {
            // Without another thread, this one does more.
            let help = (0..self.0).map_while(|_| threads::start_in(scope, "katydid copy", STACK, work).ok());
            let help: Vec<_> = help.collect();
            let own = work();
            help.into_iter()
                .fold(own, |so_far, thread| so_far.and(thread.join().unwrap_or(Err(CUresult::ERROR_UNKNOWN))))
        })
    }
}

impl Drop for Helpers {
    fn drop(&mut self) {
        HELPERS.fetch_sub(self.0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn helpers_are_limited_together() {
        let some = Helpers::take(MOST_HELPERS - 1);
        let (one, none) = (Helpers::take(MOST_HELPERS), Helpers::take(1));
        assert!(some.0 + one.0 + none.0 <= MOST_HELPERS);
    }

    #[test]
    fn every_number_is_done_once_and_a_failure_is_the_result() {
        let helpers = Helpers::take(3);
        let seen = Mutex::new(Vec::new());
        let step = |index| {
            seen.lock().unwrap().push(index);
            Ok(())
        };
        assert_eq!(helpers.run(100, &step), Ok(()));
        let mut seen = seen.into_inner().unwrap();
        seen.sort_unstable();
        assert_eq!(seen, (0..100).collect::<Vec<u64>>());
        let failing = |index| if index == 7 { Err(CUresult::ERROR_UNKNOWN) } else { Ok(()) };
        assert_eq!((helpers.run(8, &failing), helpers.run(0, &failing)), (Err(CUresult::ERROR_UNKNOWN), Ok(())));
    }
}

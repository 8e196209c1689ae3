//! Threads of ours in the program: they take no signals, because the program's handlers run on the program's threads.
#![expect(unsafe_code, reason = "masks of signals are C's")]

use std::io;
use std::num::NonZero;
use std::sync::OnceLock;
use std::thread::{self, Scope, ScopedJoinHandle};

/// Starts a thread with a stack of `stack` bytes that takes no signals.
///
/// # Errors
///
/// When the system gives no thread.
pub fn start(name: &str, stack: usize, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let builder = thread::Builder::new().name(name.to_owned()).stack_size(stack);
    with_signals_blocked(|| builder.spawn(body)).map(drop)
}

/// The same within a scope, whose end waits for it.
///
/// # Errors
///
/// When the system gives no thread.
pub fn start_in<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: &str,
    stack: usize,
    body: impl FnOnce() -> T + Send + 'scope,
) -> io::Result<ScopedJoinHandle<'scope, T>> {
    let builder = thread::Builder::new().name(name.to_owned()).stack_size(stack);
    with_signals_blocked(|| builder.spawn_scoped(scope, body))
}

/// How many threads of this process can run at a time.
pub fn processors() -> usize {
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| thread::available_parallelism().map_or(1, NonZero::get))
}

/// Starts something that inherits a mask of all signals.
fn with_signals_blocked<R>(start: impl FnOnce() -> R) -> R {
    // SAFETY: both sets are locals, filled by the calls before they are read.
    unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        let result = start();
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many signals the calling thread blocks, of the first 31.
    fn blocked() -> usize {
        // SAFETY: the set is a local that the call fills.
        unsafe {
            let mut mask = std::mem::zeroed();
            libc::pthread_sigmask(libc::SIG_SETMASK, std::ptr::null(), &mut mask);
            (1..32).filter(|signal| libc::sigismember(&mask, *signal) == 1).count()
        }
    }

    #[test]
    fn a_thread_of_ours_takes_no_signals_and_others_do_as_before() {
        let before = blocked();
        let (told, heard) = std::sync::mpsc::channel();
        start("test", 256 << 10, move || told.send(blocked()).unwrap()).unwrap();
        // Neither SIGKILL nor SIGSTOP can be blocked.
        assert_eq!(heard.recv().unwrap(), 29);
        assert_eq!(blocked(), before);
    }
}

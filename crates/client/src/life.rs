//! Where this process is in its life with Katydid: not started, running, forked, or on its way out.
//!
//! The rule: what a library does after `fork` and during process exit is decided here once, by one relaxed load, and
//! never by touching the connection. A child of an initialised parent is refused everything, as NVIDIA's driver does;
//! the connection and the shared memory stay the parent's.
#![expect(unsafe_code, reason = "pthread_atfork and atexit are C interfaces")]

use std::sync::Once;
use std::sync::atomic::{AtomicU8, Ordering};

/// How far the process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Life {
    /// Nothing was initialised yet.
    Fresh = 0,
    /// A session is up.
    Running = 1,
    /// This is the child of a process whose session was up.
    Forked = 2,
    /// The exit handlers of the process have begun.
    Exiting = 3,
}

static LIFE: AtomicU8 = AtomicU8::new(Life::Fresh as u8);
static HANDLERS: Once = Once::new();

/// What the process is doing now.
pub fn now() -> Life {
    match LIFE.load(Ordering::Relaxed) {
        0 => Life::Fresh,
        1 => Life::Running,
        2 => Life::Forked,
        _ => Life::Exiting,
    }
}

/// Notes that a session is up, and watches for fork and exit from now on. `Release`: who sees it sees the session.
pub fn start() {
    HANDLERS.call_once(|| {
        // SAFETY: both handlers are functions of this library, which is linked to stay loaded (-z nodelete), and touch
        // one atomic only. Failure would need the C library to be out of memory; then a child is merely not stopped.
        unsafe {
            libc::pthread_atfork(None, None, Some(forked));
            libc::atexit(exiting);
        }
    });
    LIFE.store(Life::Running as u8, Ordering::Release);
}

/// Whether a session is up; pairs with [`start`].
pub fn is_running() -> bool {
    LIFE.load(Ordering::Acquire) == Life::Running as u8
}

extern "C" fn forked() {
    let _ = LIFE.compare_exchange(Life::Running as u8, Life::Forked as u8, Ordering::Relaxed, Ordering::Relaxed);
}

extern "C" fn exiting() {
    let _ = LIFE.compare_exchange(Life::Running as u8, Life::Exiting as u8, Ordering::Relaxed, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One test, because the state belongs to the process.
    #[test]
    fn a_child_of_a_running_process_is_refused_and_exit_ends_it() {
        assert_eq!(now(), Life::Fresh);
        start();
        assert!(is_running());
        // SAFETY: the child calls only async-signal-safe functions and leaves by _exit.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let code = i32::from(now() != Life::Forked);
            // SAFETY: ends the child without running the test harness's handlers.
            unsafe { libc::_exit(code) };
        }
        let mut status = -1;
        // SAFETY: waits for the child made above.
        unsafe { libc::waitpid(child, &mut status, 0) };
        assert_eq!(status, 0);
        exiting();
        assert_eq!(now(), Life::Exiting);
    }
}

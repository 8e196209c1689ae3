//! Where this process is in its life with Katydid: not started, running, without its worker, forked, or on its way out.
//!
//! The rule: what a library does after `fork` and during process exit is decided here once, by one relaxed load, and
//! never by touching the connection. A child of an initialised parent is refused everything, as NVIDIA's driver does;
//! the connection and the shared memory stay the parent's.
#![expect(unsafe_code, reason = "pthread_atfork and atexit are C interfaces")]

use std::sync::OnceLock;
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
    /// The session has ended under the program.
    Lost = 4,
}

static LIFE: AtomicU8 = AtomicU8::new(Life::Fresh as u8);
/// What is to be done at a turning point of the process.
pub type Handler = fn();
/// In a child, and at the exit.
static HANDLERS: OnceLock<(Handler, Handler)> = OnceLock::new();

/// What the process is doing now.
pub fn now() -> Life {
    match LIFE.load(Ordering::Relaxed) {
        0 => Life::Fresh,
        1 => Life::Running,
        2 => Life::Forked,
        4 => Life::Lost,
        _ => Life::Exiting,
    }
}

/// Notes that a session is up, and watches for fork and exit from now on: a child runs `after_fork`, which may only do
/// what is safe in a signal handler, and the process runs `at_exit` once its exit handlers have begun.
pub fn start(after_fork: Handler, at_exit: Handler) {
    HANDLERS.get_or_init(|| {
        // SAFETY: both handlers are functions of this library, which is linked to stay loaded (-z nodelete). Failure
        // would need the C library to be out of memory; then a child is merely not stopped.
        unsafe {
            libc::pthread_atfork(None, None, Some(forked));
            libc::atexit(exiting);
        }
        (after_fork, at_exit)
    });
    LIFE.store(Life::Running as u8, Ordering::Release);
}

/// Whether a session is up; pairs with [`start`].
pub fn is_running() -> bool {
    LIFE.load(Ordering::Acquire) == Life::Running as u8
}

/// Notes that the worker is gone; true for the first who does.
pub fn lose() -> bool {
    leave(Life::Running, Life::Lost)
}

extern "C" fn forked() {
    if (leave(Life::Running, Life::Forked) || leave(Life::Lost, Life::Forked))
        && let Some((after_fork, _)) = HANDLERS.get()
    {
        after_fork();
    }
}

extern "C" fn exiting() {
    if (leave(Life::Running, Life::Exiting) || leave(Life::Lost, Life::Exiting))
        && let Some((_, at_exit)) = HANDLERS.get()
    {
        at_exit();
    }
}

/// Goes from one state to another; false if it was not that one.
fn leave(from: Life, to: Life) -> bool {
    LIFE.compare_exchange(from as u8, to as u8, Ordering::Relaxed, Ordering::Relaxed).is_ok()
}

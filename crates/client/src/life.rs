//! Where this process is in its life with Katydid: not started, running, without its worker, forked, or on its way out.
//!
//! The rule: what a library does after `fork` and during process exit is decided here once, by one relaxed load, and
//! never by touching the connection. A child of an initialised parent is refused everything, as NVIDIA's driver does;
//! the connection and the shared memory stay the parent's. A child that was made past the C library (`clone`, the bare
//! system call) finds its state wiped. State that the kernel does not wipe tells it from a process that has begun nothing.
#![expect(unsafe_code, reason = "pthread_atfork and atexit are C interfaces")]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use katydid_driver_rules::state::wiped::WipedByte;

/// Which phase of its GPU use the process is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Life {
    /// `cuInit` has not been called.
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

/// How far the process is; [`Life::Fresh`] in a child.
static PROCESS_LIFE: WipedByte = WipedByte::new();
/// A session has been up, in this process or in one that it is a child of.
static SESSION_STARTED: AtomicBool = AtomicBool::new(false);
/// What is to be done at a turning point of the process.
pub type Handler = fn();
/// In a child, and at the exit.
static FORK_AND_EXIT_HANDLERS: OnceLock<(Handler, Handler)> = OnceLock::new();

fn life() -> &'static AtomicU8 {
    PROCESS_LIFE.get()
}

/// What the process is doing now.
#[inline]
pub fn now() -> Life {
    match life().load(Ordering::Relaxed) {
        0 => fresh_or_child(),
        1 => Life::Running,
        2 => Life::Forked,
        4 => Life::Lost,
        _ => Life::Exiting,
    }
}

/// A process that has begun nothing, or a child of which no handler has heard before.
#[cold]
fn fresh_or_child() -> Life {
    if !SESSION_STARTED.load(Ordering::Acquire) {
        return Life::Fresh;
    }
    // Another thread may have started meanwhile: where it has noted that, the state is there too, unless it was wiped.
    if life().load(Ordering::Relaxed) == Life::Fresh as u8 {
        forked();
    }
    now()
}

/// Notes that a session is up, and watches for fork and exit from now on: a child runs `after_fork`, which may only do
/// what is safe in a signal handler, and the process runs `at_exit` once its exit handlers have begun.
pub fn start(after_fork: Handler, at_exit: Handler) {
    FORK_AND_EXIT_HANDLERS.get_or_init(|| {
        // SAFETY: both handlers are functions of this library, which is linked to stay loaded (-z nodelete). Failure
        // would need the C library to be out of memory; then a child is merely not stopped.
        unsafe {
            libc::pthread_atfork(None, None, Some(forked));
            libc::atexit(exiting);
        }
        // Where the system does not do that (before Linux 4.14), a child made past the C library is merely not stopped.
        let _ = PROCESS_LIFE.wipe_in_children();
        (after_fork, at_exit)
    });
    life().store(Life::Running as u8, Ordering::Release);
    SESSION_STARTED.store(true, Ordering::Release);
}

/// Whether a session is up; pairs with [`start`].
pub fn is_running() -> bool {
    life().load(Ordering::Acquire) == Life::Running as u8
}

/// Notes that the worker is gone; true for the first caller.
pub fn lose() -> bool {
    leave(Life::Running, Life::Lost)
}

extern "C" fn forked() {
    let is_child = SESSION_STARTED.load(Ordering::Relaxed) && leave(Life::Fresh, Life::Forked);
    if (is_child || leave(Life::Running, Life::Forked) || leave(Life::Lost, Life::Forked))
        && let Some((after_fork, _)) = FORK_AND_EXIT_HANDLERS.get()
    {
        after_fork();
    }
}

extern "C" fn exiting() {
    if (leave(Life::Running, Life::Exiting) || leave(Life::Lost, Life::Exiting))
        && let Some((_, at_exit)) = FORK_AND_EXIT_HANDLERS.get()
    {
        at_exit();
    }
}

/// Goes from one state to another; false if it was not that one.
fn leave(from: Life, to: Life) -> bool {
    life().compare_exchange(from as u8, to as u8, Ordering::Relaxed, Ordering::Relaxed).is_ok()
}

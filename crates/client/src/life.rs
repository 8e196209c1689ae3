//! The phase of this process: not started, running, without its worker, forked, or exiting.
//!
//! The rule: what a library does after `fork` and during process exit is decided here once, by one relaxed load, and
//! never by touching the connection. A child of an initialised parent is refused everything, as NVIDIA's driver does;
//! the connection and the shared memory stay the parent's. A child that was made past the C library (`clone`, the bare
//! system call) finds its state wiped. State that the kernel does not wipe tells it from a process that has begun nothing.
//! A child that shares its parent's memory uses its parent's session.
#![expect(unsafe_code, reason = "pthread_atfork and atexit are C interfaces")]

use std::process;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};

use katydid_driver_rules::state::wiped::WipedByte;

/// Which phase of its GPU use the process is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Life {
    /// `cuInit` has not been called.
    Fresh = 0,
    /// A session is open.
    Running = 1,
    /// This is the child of a process that had a session.
    Forked = 2,
    /// The exit handlers of the process have begun.
    Exiting = 3,
    /// The session has ended under the program.
    Lost = 4,
}

/// The process's phase; [`Life::Fresh`] in a child.
static PROCESS_LIFE: WipedByte = WipedByte::new();
/// Whether a session was open, in this process or in one of its ancestors.
static SESSION_STARTED: AtomicBool = AtomicBool::new(false);
/// The process whose session it is: a child that shares its memory (`vfork`, `clone` with `CLONE_VM`) has another number.
static SESSION_PROCESS: AtomicU32 = AtomicU32::new(0);
/// What is to be done at a turning point of the process.
pub type Handler = fn();
/// The functions for a child, and for the exit.
static FORK_AND_EXIT_HANDLERS: OnceLock<(Handler, Handler)> = OnceLock::new();

fn life() -> &'static AtomicU8 {
    PROCESS_LIFE.get()
}

/// Returns the process's current phase.
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

/// Distinguishes a process that has not started from a child that no handler has noticed yet.
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

/// Notes that a session is open, and begins to watch for fork and exit. A child runs `after_fork`, which may only do what is safe
/// in a signal handler. The process runs `at_exit` once its exit handlers have begun.
pub fn start(after_fork: Handler, at_exit: Handler) {
    FORK_AND_EXIT_HANDLERS.get_or_init(|| {
        // SAFETY: both handlers are functions of this library, which is linked to stay loaded (-z nodelete). Failure
        // would need the C library to be out of memory; then a child is merely not stopped.
        unsafe {
            libc::pthread_atfork(None, None, Some(forked));
            libc::atexit(exiting);
        }
        // Where the system cannot wipe (before Linux 4.14), a child made without the C library is merely not stopped.
        let _ = PROCESS_LIFE.wipe_in_children();
        (after_fork, at_exit)
    });
    SESSION_PROCESS.store(process::id(), Ordering::Relaxed);
    life().store(Life::Running as u8, Ordering::Release);
    SESSION_STARTED.store(true, Ordering::Release);
}

/// Returns whether a session is open; pairs with [`start`].
pub fn is_running() -> bool {
    life().load(Ordering::Acquire) == Life::Running as u8
}

/// Whether this process started the session. A child that shares its memory uses it too, but has descriptors and threads of its own,
/// which end with the child: what is to last must not be opened or started there.
pub fn is_of_this_process() -> bool {
    SESSION_PROCESS.load(Ordering::Relaxed) == process::id()
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

/// Changes the phase from one to another. Returns false if it was a different one.
fn leave(from: Life, to: Life) -> bool {
    life().compare_exchange(from as u8, to as u8, Ordering::Relaxed, Ordering::Relaxed).is_ok()
}

//! Forks of the program. None happens while a connection of the shim is half made, and no child keeps one of its parent's.
//!
//! A connection does not end while a forked child has a copy of it, so a supervisor would wait for a peer that has left long ago.
//! The rule: such a connection is opened and closed while forks wait ([`hold`]), so that it is either absent or registered. A
//! child closes the registered ones before any code of the program runs in it. `exec` closes them anyway.
#![expect(unsafe_code, reason = "pthread_atfork is C's; a lock is taken before a fork and given back after it")]

use std::cell::{Cell, UnsafeCell};
use std::io;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::process;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use rustix::net::{Shutdown, shutdown};

use crate::life::Handler;

/// What forks wait for, and what a child does.
static FORK_REGISTRY: Mutex<ForkRegistry> = Mutex::new(ForkRegistry { descriptors: Vec::new(), handlers: Vec::new() });
/// The lock of a thread that holds forks, or is in one.
static HELD_FORK_LOCK: ForkLock = ForkLock(UnsafeCell::new(None));

thread_local! {
    /// How often this thread holds forks: holds may nest.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// What a child must close and call.
struct ForkRegistry {
    descriptors: Vec<RawFd>,
    handlers: Vec<Handler>,
}

struct ForkLock(UnsafeCell<Option<MutexGuard<'static, ForkRegistry>>>);

// SAFETY: only the thread that has the lock reads it, between its own `enter` and `leave`.
unsafe impl Sync for ForkLock {}

/// While this value lives, no thread forks; a fork waits.
#[derive(Debug)]
pub struct NoFork(PhantomData<*const ()>);

/// Makes forks wait while the value lives. Holds of one thread may nest.
#[must_use]
pub fn hold() -> NoFork {
    static WATCHED: Once = Once::new();
    // SAFETY: the handlers are functions of this library, which is linked to stay loaded (-z nodelete). Failure would need the C
    // library to be out of memory; then no fork waits, as without this.
    WATCHED.call_once(|| unsafe {
        libc::pthread_atfork(Some(enter), Some(leave), Some(in_child));
    });
    enter();
    NoFork(PhantomData)
}

/// Registers `handler` for children. It may only do what is safe in a signal handler.
pub fn in_children(handler: Handler) {
    let forks = hold();
    forks.change(|known| known.handlers.push(handler));
}

extern "C" fn enter() {
    if DEPTH.get() == 0 {
        let lock = FORK_REGISTRY.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: this thread has the lock, and no thread reads the cell without it.
        unsafe { *HELD_FORK_LOCK.0.get() = Some(lock) };
    }
    DEPTH.set(DEPTH.get() + 1);
}

extern "C" fn leave() {
    DEPTH.set(DEPTH.get().saturating_sub(1));
    if DEPTH.get() == 0 {
        // SAFETY: this thread has the lock, which it releases after the last use.
        drop(unsafe { (*HELD_FORK_LOCK.0.get()).take() });
    }
}

/// Runs in the child, whose only thread has the lock.
extern "C" fn in_child() {
    with_known(|known| {
        for descriptor in known.descriptors.drain(..) {
            // SAFETY: a copy of the parent's connection, whose owner leaves the number alone in any other process.
            unsafe { libc::close(descriptor) };
        }
        known.handlers.iter().for_each(|handler| handler());
    });
    leave();
}

/// Runs `work` with the registry. Only between `enter` and `leave` of this thread.
fn with_known(work: impl FnOnce(&mut ForkRegistry)) {
    // SAFETY: by the rule above; nothing called here holds or forks.
    if let Some(lock) = unsafe { (*HELD_FORK_LOCK.0.get()).as_mut() } {
        work(lock);
    }
}

impl NoFork {
    fn change(&self, change: impl FnOnce(&mut ForkRegistry)) {
        with_known(change);
    }
}

impl Drop for NoFork {
    fn drop(&mut self) {
        leave();
    }
}

/// A connection of this process alone: no forked child has it, and it ends with the value, even if other descriptors exist.
#[derive(Debug)]
pub struct ProcessOwned<T: AsFd> {
    connection: ManuallyDrop<T>,
    /// The process that opened it. In a child it is closed already.
    process: u32,
}

impl<T: AsFd> ProcessOwned<T> {
    /// Opens a connection by `open`, which must open nothing else.
    ///
    /// # Errors
    ///
    /// The errors of `open`.
    pub fn open(open: impl FnOnce() -> io::Result<T>) -> io::Result<Self> {
        let forks = hold();
        let connection = ManuallyDrop::new(open()?);
        let descriptor = connection.as_fd().as_raw_fd();
        forks.change(|known| known.descriptors.push(descriptor));
        Ok(Self { connection, process: process::id() })
    }
}

impl<T: AsFd> Deref for ProcessOwned<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.connection
    }
}

impl<T: AsFd> Drop for ProcessOwned<T> {
    fn drop(&mut self) {
        if self.process != process::id() {
            return;
        }
        let (forks, descriptor) = (hold(), self.connection.as_fd().as_raw_fd());
        forks.change(|known| known.descriptors.retain(|known| *known != descriptor));
        // A process that was made by other means than fork may have a copy.
        let _ = shutdown(&*self.connection, Shutdown::Both);
        // SAFETY: dropped once, here, and not used after.
        unsafe { ManuallyDrop::drop(&mut self.connection) };
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use std::thread;

    use super::*;

    /// Forks a child for `work`, which may only do what is safe in a signal handler. Returns its status.
    fn child(work: impl FnOnce() -> bool) -> i32 {
        // SAFETY: the child calls nothing but `work` and `_exit`.
        match unsafe { libc::fork() } {
            0 => {
                let status = i32::from(!work());
                // SAFETY: ends the child alone.
                unsafe { libc::_exit(status) }
            }
            pid => {
                let mut status = -1;
                // SAFETY: the output is a local.
                assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
                status
            }
        }
    }

    #[test]
    fn a_child_has_no_connection_of_its_parent_s() {
        let (local, _peer) = UnixStream::pair().unwrap();
        let local = ProcessOwned::open(|| Ok(local)).unwrap();
        let descriptor = local.as_fd().as_raw_fd();
        // SAFETY: only queries a number.
        let is_open = || unsafe { libc::fcntl(descriptor, libc::F_GETFD) } != -1;
        assert!(is_open());
        assert_eq!(child(|| !is_open()), 0);
        assert!(is_open());
        drop(local);
    }

    #[test]
    fn a_connection_ends_though_another_process_has_a_copy() {
        let (local, mut peer) = UnixStream::pair().unwrap();
        let copy = local.try_clone().unwrap();
        drop(ProcessOwned::open(|| Ok(local)).unwrap());
        assert_eq!(peer.read(&mut [0]).unwrap(), 0);
        drop(copy);
    }

    #[test]
    fn a_fork_waits_for_its_holder_but_not_for_its_own_thread() {
        let (first, second) = (hold(), hold());
        drop(first);
        assert_eq!(child(|| true), 0);
        let other = thread::spawn(|| child(|| DEPTH.get() == 0));
        thread::yield_now();
        assert!(!other.is_finished());
        drop(second);
        assert_eq!(other.join().unwrap(), 0);
    }

    #[test]
    fn children_run_what_was_asked_for() {
        static RUN: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        use std::sync::atomic::Ordering::Relaxed;
        in_children(|| RUN.store(process::id(), Relaxed));
        assert_eq!(child(|| RUN.load(Relaxed) == process::id()), 0);
        assert_eq!(RUN.load(Relaxed), 0);
    }
}

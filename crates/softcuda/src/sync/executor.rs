//! Threads that run streams: as many as there are busy streams, none while nothing is to do.
//!
//! A thread that has run out of streams waits a while for the next, then ends.

#![expect(unsafe_code, reason = "sets the signal mask of new threads")]

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use katydid_ptx_exec::prepare_threads;

use crate::ffi::say;
use crate::process::settings;
use crate::sync::stream::Stream;

/// How long a thread waits for another stream.
const LINGER: Duration = Duration::from_secs(5);

/// Streams that wait for a thread, and threads that wait for a stream.
#[derive(Default)]
struct Pool {
    /// Claimed, and not yet taken by a thread.
    streams: VecDeque<Arc<Stream>>,
    /// Threads in [`next`], those just woken included.
    idle: usize,
}

/// The threads of this process. They do not exist in a forked child, which is why nothing is served there.
static POOL: Mutex<Pool> = Mutex::new(Pool { streams: VecDeque::new(), idle: 0 });
/// Told when a stream is put in for a thread that waits.
static ARRIVED: Condvar = Condvar::new();

fn pool() -> MutexGuard<'static, Pool> {
    POOL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has a claimed stream run by a thread of the pool.
pub(crate) fn run(stream: Arc<Stream>) {
    let mut pool = pool();
    pool.streams.push_back(stream);
    if pool.idle >= pool.streams.len() {
        ARRIVED.notify_one();
        return;
    }
    drop(pool);
    // Without another thread the stream waits for one that is running; without any, this one does the work.
    if spawn().is_err() && lend_a_hand().is_none() {
        say("no thread to run a stream on; raise the limit of processes (ulimit -u)");
    }
}

/// Runs the oldest waiting stream on the calling thread.
fn lend_a_hand() -> Option<()> {
    let stream = pool().streams.pop_front()?;
    stream.work();
    Some(())
}

/// Starts a thread that no signal of the program is delivered to, and before the first one those that help with launches.
fn spawn() -> std::io::Result<()> {
    // SAFETY: both sets are locals; the mask of the calling thread is put back below, whatever comes of it.
    let before = unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        before
    };
    prepare_threads(settings::cores().saturating_sub(1));
    let started = thread::Builder::new().name("softcuda".to_owned()).spawn(serve);
    // SAFETY: `before` was filled above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut()) };
    started.map(drop)
}

/// The life of a thread.
fn serve() {
    while let Some(stream) = next() {
        stream.work();
    }
}

/// The next stream, or `None` when none came for a while.
fn next() -> Option<Arc<Stream>> {
    let mut pool = pool();
    pool.idle += 1;
    let waiting = ARRIVED.wait_timeout_while(pool, LINGER, |pool| pool.streams.is_empty());
    pool = waiting.unwrap_or_else(PoisonError::into_inner).0;
    pool.idle -= 1;
    pool.streams.pop_front()
}

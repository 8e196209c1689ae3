//! Threads that help with launches: made once, asleep on a condition variable while there is nothing to do.
//!
//! The thread that runs a launch invites helpers and starts at once; it never waits for a helper that has not begun, only
//! for those that have. So a launch that is over before any thread woke up costs no more than the invitation, and launches of
//! several streams share the same helpers instead of bringing threads of their own.

#![expect(unsafe_code, reason = "lends borrowed work to threads that outlive it, and waits until they have let go")]

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

/// What the helpers are invited to, and how many there are.
struct HelperPool {
    /// One entry for each helper wanted; entries of work that is over are thrown away by the helper that finds them.
    invitations: VecDeque<Arc<SharedTask>>,
    /// Helpers that wait.
    idle: usize,
    /// Helpers that exist.
    threads: usize,
}

static HELPER_POOL: Mutex<HelperPool> = Mutex::new(HelperPool { invitations: VecDeque::new(), idle: 0, threads: 0 });
/// Told of each invitation.
static HELPERS_INVITED: Condvar = Condvar::new();

/// Work that several threads do together, and who does it now.
struct SharedTask {
    /// Alive until `close` has returned; called only by helpers that `enter` let in.
    work: &'static (dyn Fn() + Sync),
    state: Mutex<TaskMembers>,
    /// Told when the last helper has left.
    all_left: Condvar,
}

/// Who is in a task.
#[derive(Default)]
struct TaskMembers {
    helpers: usize,
    closed: bool,
    /// What a helper panicked with.
    panic: Option<Box<dyn Any + Send>>,
}

/// Closes its task when it goes, however that comes about.
struct Closing<'a>(&'a SharedTask);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SharedTask {
    /// Lets a helper in, unless the work is over.
    fn enter(&self) -> bool {
        let mut state = lock(&self.state);
        state.helpers += usize::from(!state.closed);
        !state.closed
    }

    /// A helper is done.
    fn leave(&self, panic: Option<Box<dyn Any + Send>>) {
        let mut state = lock(&self.state);
        state.helpers -= 1;
        state.panic = state.panic.take().or(panic);
        if state.helpers == 0 {
            self.all_left.notify_all();
        }
    }

    /// Lets no helper in any more and waits for those inside.
    fn close(&self) {
        let mut state = lock(&self.state);
        state.closed = true;
        drop(self.all_left.wait_while(state, |state| state.helpers > 0).unwrap_or_else(PoisonError::into_inner));
    }
}

/// Runs `work` on this thread and on up to `threads - 1` helpers; returns when all that began have ended.
pub(crate) fn together(threads: usize, work: &(dyn Fn() + Sync)) {
    if threads <= 1 {
        return work();
    }
    // SAFETY: only the lifetime changes. Helpers call `work` between `enter` and `leave` only, and `Closing` waits for
    // all of them before this function returns or unwinds.
    let lent = unsafe { std::mem::transmute::<&(dyn Fn() + Sync), &'static (dyn Fn() + Sync)>(work) };
    let task = SharedTask { work: lent, state: Mutex::default(), all_left: Condvar::new() };
    let task = Arc::new(task);
    let closing = Closing(&task);
    invite(&task, threads - 1);
    work();
    drop(closing);
    let panic = lock(&task.state).panic.take();
    if let Some(panic) = panic {
        resume_unwind(panic);
    }
}

/// Asks for helpers, and makes those that are missing.
fn invite(task: &Arc<SharedTask>, helpers: usize) {
    prepare_threads(helpers);
    let mut pool = lock(&HELPER_POOL);
    // What is over would only delay what is not.
    pool.invitations.retain(|task| !lock(&task.state).closed);
    pool.invitations.extend(std::iter::repeat_n(task, helpers).cloned());
    let sleepers = pool.idle.min(helpers);
    drop(pool);
    for _ in 0..sleepers {
        HELPERS_INVITED.notify_one();
    }
}

/// Makes sure that there are `helpers` threads to help with launches, as far as the system gives any. They inherit the
/// signal mask of the calling thread and stay for the life of the process.
pub fn prepare_threads(helpers: usize) {
    while lock(&HELPER_POOL).threads < helpers {
        let mut pool = lock(&HELPER_POOL);
        if pool.threads >= helpers {
            return;
        }
        // Without a helper the launch is slower, and that is all.
        if thread::Builder::new().name("softcuda-helper".to_owned()).spawn(serve).is_err() {
            return;
        }
        pool.threads += 1;
    }
}

/// The life of a helper.
fn serve() {
    loop {
        let task = next();
        if task.enter() {
            let panic = catch_unwind(AssertUnwindSafe(task.work)).err();
            task.leave(panic);
        }
    }
}

/// Waits for an invitation.
fn next() -> Arc<SharedTask> {
    let mut pool = lock(&HELPER_POOL);
    loop {
        if let Some(task) = pool.invitations.pop_front() {
            return task;
        }
        pool.idle += 1;
        pool = HELPERS_INVITED.wait(pool).unwrap_or_else(PoisonError::into_inner);
        pool.idle -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn invited_helpers_work_at_the_same_time() {
        let (meeting, count) = (Barrier::new(3), AtomicUsize::new(0));
        // Returns only when three threads are here at once.
        together(3, &|| {
            meeting.wait();
            count.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(count.into_inner(), 3);
    }

    #[test]
    fn no_helper_is_inside_when_it_returns() {
        for _ in 0..200 {
            let (inside, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
            together(4, &|| {
                most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                inside.fetch_sub(1, Ordering::SeqCst);
            });
            assert_eq!(inside.into_inner(), 0);
            assert!((1..=4).contains(&most.into_inner()));
        }
    }

    #[test]
    fn a_panic_of_a_helper_reaches_the_caller_after_all_have_left() {
        let meeting = Barrier::new(2);
        let caller = thread::current().id();
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            together(2, &|| {
                meeting.wait();
                assert!(thread::current().id() == caller, "on purpose");
            });
        }));
        assert!(outcome.is_err());
    }
}

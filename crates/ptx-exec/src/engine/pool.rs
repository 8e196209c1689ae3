//! Helper threads for launches: created once, and asleep on a condition variable without work.
//!
//! The thread that runs a launch invites helpers and starts at once. At the end, it waits only for helpers that have begun. So a
//! launch that ends before any thread wakes up costs only the invitation. Launches of several streams share the same helpers
//! instead of creating their own.

#![expect(unsafe_code, reason = "lends borrowed work to threads that outlive it, and waits until they have let go")]

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

/// Invitations of helpers, and the numbers of helpers.
struct HelperPool {
    /// One entry per requested helper. A helper that finds an entry of finished work drops it.
    invitations: VecDeque<Arc<SharedTask>>,
    /// Number of idle helpers.
    idle: usize,
    /// Number of helpers.
    threads: usize,
}

static HELPER_POOL: Mutex<HelperPool> = Mutex::new(HelperPool { invitations: VecDeque::new(), idle: 0, threads: 0 });
/// Signalled at each invitation.
static HELPERS_INVITED: Condvar = Condvar::new();

/// Work that several threads do together, and their state.
struct SharedTask {
    /// Alive until `close` has returned. Only helpers that `enter` admitted call it.
    work: &'static (dyn Fn() + Sync),
    state: Mutex<TaskMembers>,
    /// Signalled when the last helper has left.
    all_left: Condvar,
}

/// The members of a task.
#[derive(Default)]
struct TaskMembers {
    helpers: usize,
    closed: bool,
    /// Panic of a helper.
    panic: Option<Box<dyn Any + Send>>,
}

/// Closes its task on drop, even after a panic.
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
    /// Admits a helper, unless the work is over.
    fn enter(&self) -> bool {
        let mut state = lock(&self.state);
        state.helpers += usize::from(!state.closed);
        !state.closed
    }

    /// Notes that a helper is done.
    fn leave(&self, panic: Option<Box<dyn Any + Send>>) {
        let mut state = lock(&self.state);
        state.helpers -= 1;
        state.panic = state.panic.take().or(panic);
        if state.helpers == 0 {
            self.all_left.notify_all();
        }
    }

    /// Admits no more helpers, and waits for those inside.
    fn close(&self) {
        let mut state = lock(&self.state);
        state.closed = true;
        drop(self.all_left.wait_while(state, |state| state.helpers > 0).unwrap_or_else(PoisonError::into_inner));
    }
}

/// Runs `work` on this thread and on up to `threads - 1` helpers. Returns when all that began have ended.
pub(crate) fn together(threads: usize, work: &(dyn Fn() + Sync)) {
    if threads <= 1 {
        return work();
    }
    // SAFETY: only the lifetime changes. Helpers call `work` between `enter` and `leave` only, and `Closing` waits for
    // all of them before this function returns or unwinds.
    let work_of_threads = unsafe { std::mem::transmute::<&(dyn Fn() + Sync), &'static (dyn Fn() + Sync)>(work) };
    let task = SharedTask { work: work_of_threads, state: Mutex::default(), all_left: Condvar::new() };
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

/// Invites helpers, and creates missing ones.
fn invite(task: &Arc<SharedTask>, helpers: usize) {
    prepare_threads(helpers);
    let mut pool = lock(&HELPER_POOL);
    // Finished tasks would only delay others.
    pool.invitations.retain(|task| !lock(&task.state).closed);
    pool.invitations.extend(std::iter::repeat_n(task, helpers).cloned());
    let sleepers = pool.idle.min(helpers);
    drop(pool);
    for _ in 0..sleepers {
        HELPERS_INVITED.notify_one();
    }
}

/// Creates helper threads until there are `helpers` of them, as far as the system allows. They inherit the signal mask of the
/// calling thread and live as long as the process.
pub fn prepare_threads(helpers: usize) {
    while lock(&HELPER_POOL).threads < helpers {
        let mut pool = lock(&HELPER_POOL);
        if pool.threads >= helpers {
            return;
        }
        // Without a helper, the launch is only slower.
        if thread::Builder::new().name("softcuda-helper".to_owned()).spawn(serve).is_err() {
            return;
        }
        pool.threads += 1;
    }
}

/// Runs tasks for the life of the thread.
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
        // Returns only when three threads are here at the same time.
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

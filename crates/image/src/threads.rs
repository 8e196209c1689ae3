//! Runs the same work in several threads, as far as the system gives threads.

use std::thread;
use std::thread::ScopedJoinHandle;

/// Runs `work` in `count` threads, one of which is the calling one, and returns what each gave. If the system gives fewer, fewer
/// run: `work` takes from what all share until nothing is left.
pub(crate) fn in_threads<T: Send>(count: usize, work: impl Fn() -> T + Sync) -> Vec<thread::Result<T>> {
    thread::scope(|scope| {
        let others = (1..count).map_while(|_| thread::Builder::new().spawn_scoped(scope, &work).ok());
        let others: Vec<ScopedJoinHandle<'_, T>> = others.collect();
        let own = (count > 0).then(|| Ok(work()));
        own.into_iter().chain(others.into_iter().map(ScopedJoinHandle::join)).collect()
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn all_threads_work_at_the_same_time() {
        let barrier = Barrier::new(3);
        let outcomes = in_threads(3, || barrier.wait().is_leader());
        assert_eq!(outcomes.into_iter().filter(|outcome| outcome.as_ref().is_ok_and(|leads| *leads)).count(), 1);
        assert!(in_threads(0, || panic!("no thread is to work")).is_empty());
    }
}

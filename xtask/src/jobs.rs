//! Work on many things, several of them at a time.

use std::panic::resume_unwind;
use std::sync::{Mutex, PoisonError};
use std::thread;

/// Returns the results of `work` for each item, in the order of the items; `at_a_time` run at once. A failure does not stop the
/// others.
pub(crate) fn each<T: Send, R: Send>(items: Vec<T>, at_a_time: usize, work: impl Fn(T) -> R + Sync) -> Vec<R> {
    let queue = Mutex::new(items.into_iter().enumerate());
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    let run = || std::iter::from_fn(next).map(|(at, item)| (at, work(item))).collect::<Vec<(usize, R)>>();
    let mut results: Vec<(usize, R)> = thread::scope(|scope| {
        let threads: Vec<_> = (0..at_a_time).map(|_| scope.spawn(run)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
    });
    results.sort_by_key(|(at, _)| *at);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn results_come_in_the_order_of_the_items_whichever_is_done_first() {
        // Each item waits for another one: with fewer than two at a time this would not end.
        let (pairs, expected) = (Barrier::new(2), vec![0, 2, 4, 6]);
        let double = |number| {
            pairs.wait();
            2 * number
        };
        assert_eq!(each(vec![0, 1, 2, 3], 2, double), expected);
        assert!(each(Vec::<u8>::new(), 3, |number| number).is_empty());
    }
}

//! Numbers for the program's threads on the wire.
//!
//! A thread takes the lowest free id at its first use of a link and keeps it until it ends. The id's number, from 1, is its
//! `thread` in frames. The ids are a bitmap of atomics: another thread could hold a lock during a fork, and the child's own
//! thread ends with the same destructor as its parent's.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::link::error::LinkError;
use crate::shm::layout::MAX_LINK_THREADS;

/// The ids of one link.
#[derive(Debug)]
pub(crate) struct ThreadIds {
    in_use: [AtomicU64; MAX_LINK_THREADS / 64],
    /// Ids of abandoned calls whose replies are still due.
    abandoned: Mutex<Vec<u32>>,
}

/// One id of this thread.
struct ThreadId {
    ids: Weak<ThreadIds>,
    number: u32,
    in_call: bool,
}

thread_local! {
    static OWN_IDS: RefCell<Vec<ThreadId>> = const { RefCell::new(Vec::new()) };
}

impl ThreadIds {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { in_use: std::array::from_fn(|_| AtomicU64::new(0)), abandoned: Mutex::default() })
    }

    /// Returns this thread's number, for a frame without a reply.
    pub(crate) fn number(self: &Arc<Self>) -> Result<u32, LinkError> {
        match self.with_own(|id| id.number) {
            Some(number) => number,
            None => Ok(self.take()?.number),
        }
    }

    /// Returns whether more than one id is taken.
    pub(crate) fn are_several(&self) -> bool {
        self.in_use.iter().map(|word| word.load(Ordering::Relaxed).count_ones()).sum::<u32>() > 1
    }

    /// Runs `send` with this thread's number, which no other thread has meanwhile.
    pub(crate) fn send<R>(self: &Arc<Self>, send: impl FnOnce(u32) -> Result<R, LinkError>) -> Result<R, LinkError> {
        match self.with_own(|id| id.number) {
            Some(number) => send(number?),
            None => {
                let id = self.take()?;
                send(id.number)
            }
        }
    }

    /// Runs `call` with this thread's number, at which a reply will arrive.
    ///
    /// A thread that is already in a call has left that call by `longjmp` out of a signal handler. It takes another id. The old
    /// one stays taken until `is_over` reports that its reply has come.
    pub(crate) fn call<R>(
        self: &Arc<Self>,
        is_over: impl Fn(u32) -> bool,
        call: impl FnOnce(u32) -> Result<R, LinkError>,
    ) -> Result<R, LinkError> {
        let own_number = self.with_own(|id| {
            if id.in_call {
                self.leave(id.number, &is_over);
                *id = self.take()?;
            }
            id.in_call = true;
            Ok::<u32, LinkError>(id.number)
        });
        let Some(number) = own_number else { return self.call_once(call) };
        let number = number??;
        let result = call(number);
        // The id exists, since the lines above found it; only the thread's end takes it away. It differs if the thread has called
        // in a handler meanwhile.
        let _ = self.with_own(|id| id.in_call &= id.number != number);
        result
    }

    /// Keeps the id of an abandoned call, and frees ids whose replies have come.
    #[cold]
    fn leave(&self, number: u32, is_over: impl Fn(u32) -> bool) {
        let mut abandoned = self.abandoned.lock().unwrap_or_else(PoisonError::into_inner);
        abandoned.push(number);
        abandoned.retain(|number| {
            let is_over = is_over(*number);
            if is_over {
                self.free(*number);
            }
            !is_over
        });
    }

    fn free(&self, number: u32) {
        let id = number - 1;
        self.in_use[id as usize / 64].fetch_and(!(1 << (id % 64)), Ordering::Release);
    }

    /// Runs `call` for a thread without an id, with one that it takes for this call alone.
    fn call_once<R>(self: &Arc<Self>, call: impl FnOnce(u32) -> Result<R, LinkError>) -> Result<R, LinkError> {
        let mut id = self.take()?;
        id.in_call = true;
        let result = call(id.number);
        id.in_call = false;
        result
    }

    /// Finds this thread's id, or takes one. Returns none if the thread is ending and its ids are gone already: libraries free
    /// their GPU objects in destructors of thread-locals, which may run after the link's.
    fn with_own<R>(self: &Arc<Self>, with: impl FnOnce(&mut ThreadId) -> R) -> Option<Result<R, LinkError>> {
        let with_own = |own_ids: &RefCell<Vec<ThreadId>>| {
            let mut own_ids = own_ids.borrow_mut();
            let position = own_ids.iter().position(|id| std::ptr::eq(id.ids.as_ptr(), Arc::as_ptr(self)));
            let at = match position {
                Some(at) => at,
                None => {
                    own_ids.retain(|id| id.ids.strong_count() > 0);
                    own_ids.push(self.take()?);
                    own_ids.len() - 1
                }
            };
            Ok(with(&mut own_ids[at]))
        };
        OWN_IDS.try_with(with_own).ok()
    }

    /// Takes the lowest free id.
    fn take(self: &Arc<Self>) -> Result<ThreadId, LinkError> {
        for (index, word) in self.in_use.iter().enumerate() {
            let mut bits = word.load(Ordering::Relaxed);
            while bits != u64::MAX {
                let free = bits.trailing_ones();
                // Acquire: what the id's last owner did with its slot happened before.
                match word.compare_exchange_weak(bits, bits | 1 << free, Ordering::Acquire, Ordering::Relaxed) {
                    Ok(_) => {
                        let number = index as u32 * 64 + free + 1;
                        return Ok(ThreadId { ids: Arc::downgrade(self), number, in_call: false });
                    }
                    Err(changed) => bits = changed,
                }
            }
        }
        Err(LinkError::TooManyThreads { limit: MAX_LINK_THREADS })
    }
}

impl Drop for ThreadId {
    /// Keeps an id taken whose reply is still due (the thread was canceled), so that no other thread gets the reply.
    fn drop(&mut self) {
        if let (false, Some(ids)) = (self.in_call, self.ids.upgrade()) {
            ids.free(self.number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number_in_a_new_thread(ids: &Arc<ThreadIds>) -> u32 {
        std::thread::scope(|scope| scope.spawn(|| ids.number()).join().unwrap()).unwrap()
    }

    #[test]
    fn a_thread_keeps_its_id_and_a_later_one_gets_it() {
        let ids = ThreadIds::new();
        assert_eq!((ids.number().unwrap(), ids.number().unwrap()), (1, 1));
        assert_eq!(number_in_a_new_thread(&ids), 2);
        assert_eq!(number_in_a_new_thread(&ids), 2);
    }

    #[test]
    fn links_do_not_mix() {
        let (one, other) = (ThreadIds::new(), ThreadIds::new());
        let _someone = other.take().unwrap();
        assert_eq!((one.number().unwrap(), other.number().unwrap(), one.number().unwrap()), (1, 2, 1));
        drop(one);
        let third = ThreadIds::new();
        assert_eq!((third.number().unwrap(), other.number().unwrap()), (1, 2));
    }

    #[test]
    fn the_last_id_is_the_limit() {
        let ids = ThreadIds::new();
        let mut thread_ids: Vec<ThreadId> = std::iter::from_fn(|| ids.take().ok()).collect();
        assert_eq!((thread_ids.len(), thread_ids.last().unwrap().number), (MAX_LINK_THREADS, MAX_LINK_THREADS as u32));
        assert!(matches!(ids.number(), Err(LinkError::TooManyThreads { limit: MAX_LINK_THREADS })));
        drop(thread_ids.remove(699));
        assert_eq!(ids.number().unwrap(), 700);
    }

    #[test]
    fn an_id_with_a_pending_reply_is_not_reused() {
        let ids = ThreadIds::new();
        let mut id = ids.take().unwrap();
        id.in_call = true;
        drop(id);
        assert_eq!(ids.number().unwrap(), 2);
    }

    /// Calls when it is dropped, as libraries do that free objects of their thread.
    struct Late(Arc<ThreadIds>);

    impl Drop for Late {
        fn drop(&mut self) {
            let numbers = self.0.call(|_| false, |number| Ok((number, self.0.number()?)));
            assert!(OWN_IDS.try_with(|_| ()).is_err(), "this test is about ids that are gone");
            assert_eq!(numbers.unwrap(), (1, 2));
        }
    }

    thread_local! {
        static LATE: RefCell<Option<Late>> = const { RefCell::new(None) };
    }

    #[test]
    fn a_destructor_after_that_of_the_link_can_still_call() {
        let ids = ThreadIds::new();
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                // What was made first is destroyed last.
                LATE.set(Some(Late(Arc::clone(&ids))));
                assert_eq!(ids.number().unwrap(), 1);
            });
            thread.join().unwrap();
        });
        assert_eq!(ids.number().unwrap(), 1);
    }

    /// As `longjmp` leaves a call.
    fn leave_call(ids: &Arc<ThreadIds>) {
        ids.with_own(|id| id.in_call = true).unwrap().unwrap();
    }

    #[test]
    fn a_call_that_was_left_keeps_its_id_until_its_reply_has_come() {
        let ids = ThreadIds::new();
        assert_eq!(ids.call(|_| false, Ok).unwrap(), 1);
        leave_call(&ids);
        assert_eq!((ids.call(|_| false, Ok).unwrap(), number_in_a_new_thread(&ids)), (2, 3));
        leave_call(&ids);
        // The first reply has come by now.
        assert_eq!((ids.call(|number| number == 1, Ok).unwrap(), number_in_a_new_thread(&ids)), (1, 3));
        leave_call(&ids);
        assert_eq!(ids.call(|_| true, Ok).unwrap(), 1);
        assert_eq!(number_in_a_new_thread(&ids), 2);
    }

    #[test]
    fn a_call_ends_with_its_result() {
        let ids = ThreadIds::new();
        assert_eq!(ids.call(|_| false, |number| Ok(number + 10)).unwrap(), 11);
        assert!(matches!(ids.call(|_| false, |_| Err::<(), _>(LinkError::Closed)), Err(LinkError::Closed)));
        assert_eq!(ids.number().unwrap(), 1);
    }
}

//! A lock that costs a thread nothing that is the only one to take it.
//!
//! Most programs give their GPU work from one thread, for a while at least. That thread becomes the gate's **favourite**: it
//! enters by writing that it is inside, and looking whether it still is the favourite, without an instruction that locks.
//! Another thread first takes the lock, then the favour away: it clears the word, has the system run a barrier on every
//! processor that runs a thread of this process ([`barrier`]), and waits until the favourite is not inside. Either that sees
//! the favourite inside, or the favourite sees that it is none.
//!
//! The lock itself is a word that waiters look at, with naps: it is held for less than a microsecond, or until there is room in a
//! ring. Whoever leaves wakes nobody, so that leaving is a plain store.
#![expect(unsafe_code, reason = "what the gate guards is lent as mutable")]

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

#[cfg(all(test, loom))]
use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering};
#[cfg(not(all(test, loom)))]
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::shm::layout::SEATS;
use crate::sync::barrier;

/// So often must a thread take the lock, with no other in between, to become the favourite: taking the favour away costs as
/// much as some hundred locks.
const OFTEN: u32 = 100;
/// Looks of a waiter before it lets others run, and before it naps.
#[cfg(not(all(test, loom)))]
const LOOKS: u32 = 100;
#[cfg(not(all(test, loom)))]
const YIELDS: u32 = 110;
const NAP: Duration = Duration::from_micros(50);

/// Numbers of threads: those of the seats of a link. A thread without one has 0, and is never a favourite.
const NUMBERS: usize = SEATS + 1;

/// Who may enter.
#[derive(Debug)]
struct Gate {
    /// Number of the favourite; 0: there is none.
    favourite: AtomicU32,
    /// By number: the thread is inside as the favourite, or has yet to see that it is not that any more.
    inside: Box<[AtomicBool]>,
    /// Somebody else is, or is about to be.
    is_locked: AtomicBool,
    /// There may be a favourite: barriers work here.
    favours: AtomicBool,
    /// Who had the lock last, and how often without another in between; written by who has it.
    last: AtomicU32,
    times: AtomicU32,
}

/// How a thread came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum As {
    Favourite,
    Owner,
}

impl Gate {
    /// For threads with numbers below `numbers`.
    fn new(numbers: usize) -> Self {
        Self {
            favourite: AtomicU32::new(0),
            inside: (0..numbers).map(|_| AtomicBool::new(false)).collect(),
            is_locked: AtomicBool::new(false),
            favours: AtomicBool::new(false),
            last: AtomicU32::new(0),
            times: AtomicU32::new(0),
        }
    }

    #[inline]
    fn enter(&self, number: u32) -> As {
        if number != 0
            && self.favourite.load(Ordering::Relaxed) == number
            && let Some(inside) = self.inside.get(number as usize)
            // Else a signal interrupted this very thread inside; its handler waits for ever, as at any lock.
            && !inside.load(Ordering::Relaxed)
        {
            inside.store(true, Ordering::Relaxed);
            barrier::light();
            if self.favourite.load(Ordering::Relaxed) == number {
                return As::Favourite;
            }
            inside.store(false, Ordering::Relaxed);
        }
        self.lock();
        As::Owner
    }

    #[cold]
    fn lock(&self) {
        let is_free = || !self.is_locked.load(Ordering::Relaxed);
        let lock = || self.is_locked.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok();
        // Waiters look before they try: trying takes the line away from who has the lock.
        wait_until(|| is_free() && lock());
        let favourite = self.favourite.load(Ordering::Relaxed);
        let Some(inside) = self.inside.get(favourite as usize).filter(|_| favourite != 0) else { return };
        self.favourite.store(0, Ordering::Relaxed);
        // A system that did this before does it again; else a favourite's store has long arrived after a nap.
        if !barrier::here() {
            std::thread::sleep(NAP);
        }
        wait_until(|| !inside.load(Ordering::Acquire));
    }

    #[inline]
    fn leave(&self, number: u32, as_what: As) {
        if as_what == As::Favourite {
            if let Some(inside) = self.inside.get(number as usize) {
                inside.store(false, Ordering::Release);
            }
            return;
        }
        self.unlock(number);
    }

    fn unlock(&self, number: u32) {
        let times =
            if self.last.load(Ordering::Relaxed) == number { self.times.load(Ordering::Relaxed) + 1 } else { 0 };
        let is_favoured = number != 0 && times >= OFTEN && self.favours.load(Ordering::Relaxed);
        self.last.store(number, Ordering::Relaxed);
        self.times.store(if is_favoured { 0 } else { times.min(OFTEN) }, Ordering::Relaxed);
        if is_favoured {
            self.favourite.store(number, Ordering::Relaxed);
        }
        self.is_locked.store(false, Ordering::Release);
    }
}

fn wait_until(mut is_so: impl FnMut() -> bool) {
    let mut looks = 0_u32;
    while !is_so() {
        looks = looks.saturating_add(1);
        #[cfg(all(test, loom))]
        if looks > 0 {
            loom::thread::yield_now();
        }
        #[cfg(not(all(test, loom)))]
        match looks {
            ..LOOKS => std::hint::spin_loop(),
            LOOKS..YIELDS => std::thread::yield_now(),
            _ => std::thread::sleep(NAP),
        }
    }
}

/// What one thread at a time may use.
#[derive(Debug)]
pub(crate) struct Turn<T> {
    gate: Gate,
    value: UnsafeCell<T>,
}

// SAFETY: the gate lets one thread in at a time, and what it did is seen by the next.
unsafe impl<T: Send> Sync for Turn<T> {}

impl<T> Turn<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { gate: Gate::new(NUMBERS), value: UnsafeCell::new(value) }
    }

    /// Waits until nobody else has it. No two threads have the same `number` at a time, but 0.
    #[inline]
    pub(crate) fn take(&self, number: u32) -> Taken<'_, T> {
        Taken { turn: self, number, as_what: self.gate.enter(number) }
    }

    /// From now on a thread that takes it often does so without locking. [`barrier::register`] has said that barriers work.
    pub(crate) fn favour(&self) {
        self.gate.favours.store(true, Ordering::Relaxed);
    }
}

/// Lends what a [`Turn`] has until it is dropped.
pub(crate) struct Taken<'a, T> {
    turn: &'a Turn<T>,
    number: u32,
    as_what: As,
}

impl<T> Deref for Taken<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the gate let this thread in and no other, until the drop.
        unsafe { &*self.turn.value.get() }
    }
}

impl<T> DerefMut for Taken<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { &mut *self.turn.value.get() }
    }
}

impl<T> Drop for Taken<'_, T> {
    fn drop(&mut self) {
        self.turn.gate.leave(self.number, self.as_what);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// The favourite enters once more while another thread takes the favour away: neither is inside with the other.
    #[test]
    fn loom_no_interleaving_lets_two_in() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(|| {
            let shared = Arc::new((Gate::new(3), UnsafeCell::new(0)));
            shared.0.favourite.store(1, Ordering::Relaxed);
            let turn = |(gate, count): &(Gate, UnsafeCell<u32>), number: u32| {
                let as_what = gate.enter(number);
                // SAFETY: loom fails the test if another thread uses the cell meanwhile.
                count.with_mut(|count| unsafe { *count += 1 });
                gate.leave(number, as_what);
            };
            let other = Arc::clone(&shared);
            let other = thread::spawn(move || turn(&other, 2));
            turn(&shared, 1);
            other.join().unwrap();
            // SAFETY: as above.
            shared.1.with(|count| assert_eq!(unsafe { *count }, 2));
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// One that has favourites, if the system lets it.
    fn favouring() -> Turn<u64> {
        let turn = Turn::new(0);
        if barrier::register() {
            turn.favour();
        }
        turn
    }

    #[test]
    fn who_comes_often_becomes_the_favourite_until_another_comes() {
        let turn = favouring();
        (0..=OFTEN + 1).for_each(|_| *turn.take(7) += 1);
        let expected = if barrier::register() { As::Favourite } else { As::Owner };
        assert_eq!(turn.take(7).as_what, expected);
        assert_eq!(turn.take(8).as_what, As::Owner);
        let taken = turn.take(7);
        assert_eq!((taken.as_what, *taken), (As::Owner, u64::from(OFTEN) + 2));
        drop(taken);
        (0..2 * OFTEN).for_each(|_| *turn.take(0) += 1);
        assert_eq!(turn.take(0).as_what, As::Owner);
    }

    #[test]
    fn nothing_is_lost_among_many_threads() {
        let turn = favouring();
        std::thread::scope(|scope| {
            for thread in 1..=4 {
                let turn = &turn;
                scope.spawn(move || {
                    for round in 0..20_000_u64 {
                        *turn.take(thread) += 1;
                        // Long runs of one thread now and then, so that there are favourites.
                        if (round / 500 + u64::from(thread)).is_multiple_of(4) {
                            std::thread::yield_now();
                        }
                    }
                });
            }
        });
        assert_eq!(*turn.take(0), 80_000);
    }
}

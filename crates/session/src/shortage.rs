//! Memory that one session needs and others hold idle: a program keeps what it frees, which natively would be the driver's.
//!
//! ```text
//! program ── kdPlea ── its worker ── server ── other workers ── appeal ── programs that listen
//!                                                     │ kdWanted: of which device │ what lies idle of it, back to the driver
//! program ◀── reply ── its worker ◀─ server ◀─ other workers ◀── kdGivenBack ─┘
//! ```
//!
//! The rule: nobody waits for long for a program that does nothing. A plea is over after [`PATIENCE`] in which no memory has
//! come free, and a program that has left an appeal unanswered for so long is not appealed to again before it has answered.
//! Where nobody is short of memory, nothing of this is sent.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem::take;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// How long it is waited for programs that give nothing back.
const PATIENCE: Duration = Duration::from_millis(500);
/// Between two looks whether memory has come free.
const LOOK: Duration = Duration::from_millis(50);

/// What another session wants, by its number at the server and its own count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plea {
    /// Whose it is.
    pub session: u64,
    /// Which of that one's.
    pub number: u64,
}

/// The way to the other sessions.
pub trait Neighbours: Send + Sync {
    /// Has them give back what they hold idle of a device; [`Shortage::answered`] tells that they have.
    fn plead(&self, device: u32, number: u64);

    /// This session has done what it could for one of them.
    fn given(&self, plea: Plea);
}

/// What a session and its neighbours want of each other.
#[derive(Default)]
pub struct Shortage {
    neighbours: OnceLock<Box<dyn Neighbours>>,
    state: Mutex<State>,
    /// A plea was answered.
    answered: Condvar,
}

#[derive(Default)]
struct State {
    /// Pleas of this session so far.
    last: u64,
    /// Those that wait, and whether they are answered.
    pleas: BTreeMap<u64, bool>,
    /// Devices of which the program holds memory idle.
    idle: BTreeSet<u32>,
    /// Devices of which others want memory, and the program has not asked yet: bit n is device n.
    wanted: u32,
    /// Appeals to the program, in their order.
    appeals: VecDeque<Appealed>,
    /// The last one that it has answered.
    given: Option<u32>,
}

/// An appeal that the program has not answered.
struct Appealed {
    number: u32,
    at: Instant,
    plea: Plea,
}

impl Shortage {
    /// There are other sessions; once a session.
    pub fn connect(&self, neighbours: Box<dyn Neighbours>) {
        self.neighbours.get_or_init(|| neighbours);
    }

    /// Pleads with the neighbours for memory of a device; none where there can be none.
    pub(crate) fn plead(&self, device: u32) -> Option<u64> {
        let neighbours = self.neighbours.get()?;
        let mut state = self.lock();
        state.last += 1;
        let number = state.last;
        state.pleas.insert(number, false);
        drop(state);
        neighbours.plead(device, number);
        Some(number)
    }

    /// Waits until a plea is answered, or nothing has come free for long; `free` says how much is.
    pub(crate) fn wait(&self, number: u64, free: impl Fn() -> u64) {
        let (mut most, mut deadline) = (free(), Instant::now() + PATIENCE);
        let mut state = self.lock();
        while state.pleas.get(&number) == Some(&false) && Instant::now() < deadline {
            let (back, look) = self.answered.wait_timeout(state, LOOK).unwrap_or_else(PoisonError::into_inner);
            state = back;
            if look.timed_out() {
                drop(state);
                let now = free();
                if now > most {
                    (most, deadline) = (now, Instant::now() + PATIENCE);
                }
                state = self.lock();
            }
        }
        state.pleas.remove(&number);
    }

    /// The neighbours have done what they could for a plea of this session.
    pub fn answered(&self, number: u64) {
        if let Some(is_answered) = self.lock().pleas.get_mut(&number) {
            *is_answered = true;
        }
        self.answered.notify_all();
    }

    /// The program holds memory of a device idle, and listens for appeals.
    pub(crate) fn is_idle(&self, device: u32) {
        self.lock().idle.insert(device);
    }

    /// Another session wants memory of a device. `appeal` appeals to the program and gives the appeal's number, none if it
    /// cannot be reached.
    pub fn asked(&self, plea: Plea, device: u32, appeal: impl FnOnce() -> Option<u32>) {
        let number = self.want(device).and_then(|is_new| {
            let number = appeal();
            if number.is_none() && is_new {
                self.lock().wanted &= !bit(device);
            }
            number
        });
        let mut state = self.lock();
        match number.filter(|number| state.given != Some(*number)) {
            Some(number) => state.appeals.push_back(Appealed { number, at: Instant::now(), plea }),
            None => {
                drop(state);
                self.tell(plea);
            }
        }
    }

    /// Notes what the program will be asked for, before it is: it may ask at once. Whether that was not noted yet; none of a
    /// program that has nothing to give, or does not answer.
    fn want(&self, device: u32) -> Option<bool> {
        let mut state = self.lock();
        let is_silent = state.appeals.front().is_some_and(|first| first.at.elapsed() > PATIENCE);
        let is_willing = state.idle.contains(&device) && !is_silent;
        is_willing.then(|| {
            let is_new = state.wanted & bit(device) == 0;
            state.wanted |= bit(device);
            is_new
        })
    }

    /// The devices of which the program is to give memory back, as bits; it is told once.
    pub(crate) fn take_wanted(&self) -> u32 {
        take(&mut self.lock().wanted)
    }

    /// The program has done what an appeal asked, and those before it.
    pub(crate) fn given(&self, number: u32) {
        let mut state = self.lock();
        state.given = Some(number);
        let count = state.appeals.iter().position(|appealed| appealed.number == number).map_or(0, |last| last + 1);
        let done: Vec<Appealed> = state.appeals.drain(..count).collect();
        drop(state);
        done.iter().for_each(|appealed| self.tell(appealed.plea));
    }

    fn tell(&self, plea: Plea) {
        if let Some(neighbours) = self.neighbours.get() {
            neighbours.given(plea);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code under this lock panics.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A device among others. A session has at most half as many as there are bits.
fn bit(device: u32) -> u32 {
    1_u32.checked_shl(device).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// Notes what it is told.
    #[derive(Default, Clone)]
    struct Notes(Arc<Mutex<Vec<String>>>);

    impl Neighbours for Notes {
        fn plead(&self, device: u32, number: u64) {
            self.0.lock().unwrap().push(format!("plea {device} {number}"));
        }

        fn given(&self, plea: Plea) {
            self.0.lock().unwrap().push(format!("given {} {}", plea.session, plea.number));
        }
    }

    fn connected() -> (Shortage, Notes) {
        let (shortage, notes) = (Shortage::default(), Notes::default());
        shortage.connect(Box::new(notes.clone()));
        (shortage, notes)
    }

    fn told(notes: &Notes) -> Vec<String> {
        std::mem::take(&mut *notes.0.lock().unwrap())
    }

    #[test]
    fn without_a_server_there_is_nobody_to_plead_with() {
        assert_eq!(Shortage::default().plead(0), None);
    }

    #[test]
    fn a_plea_waits_for_its_answer_and_no_longer_than_nothing_comes_free() {
        let (shortage, notes) = connected();
        let number = shortage.plead(3).unwrap();
        assert_eq!(told(&notes), ["plea 3 1"]);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| shortage.wait(number, || 0));
            shortage.answered(number + 1);
            shortage.answered(number);
            waiting.join().unwrap();
        });
        let (began, number, free) = (Instant::now(), shortage.plead(3).unwrap(), Mutex::new(0));
        shortage.wait(number, || {
            let mut free = free.lock().unwrap();
            *free = (*free + 1).min(4);
            *free
        });
        assert!(began.elapsed() >= PATIENCE + 2 * LOOK && shortage.lock().pleas.is_empty());
    }

    #[test]
    fn only_a_program_that_holds_memory_of_the_device_is_appealed_to() {
        let (shortage, notes) = connected();
        let plea = |number| Plea { session: 7, number };
        shortage.is_idle(1);
        shortage.asked(plea(1), 0, || panic!("it has nothing"));
        shortage.asked(plea(2), 1, || None);
        assert_eq!(told(&notes), ["given 7 1", "given 7 2"]);
        shortage.asked(plea(3), 1, || Some(1));
        shortage.asked(plea(4), 1, || Some(2));
        shortage.asked(plea(5), 1, || Some(3));
        shortage.given(9);
        assert_eq!(told(&notes), Vec::<String>::new());
        shortage.given(2);
        assert_eq!(told(&notes), ["given 7 3", "given 7 4"]);
        shortage.given(3);
        assert_eq!(told(&notes), ["given 7 5"]);
    }

    #[test]
    fn a_program_hears_once_of_each_device_that_is_wanted() {
        let (shortage, _) = connected();
        let plea = |number| Plea { session: 7, number };
        [0, 3].into_iter().for_each(|device| shortage.is_idle(device));
        shortage.asked(plea(1), 3, || {
            assert_eq!(shortage.take_wanted(), 0b1000);
            Some(1)
        });
        assert_eq!(shortage.take_wanted(), 0);
        shortage.asked(plea(2), 0, || Some(2));
        shortage.asked(plea(3), 3, || Some(3));
        // One that cannot be reached now has an appeal before it all the same.
        shortage.asked(plea(4), 0, || None);
        shortage.asked(plea(5), 1, || panic!("it has nothing"));
        assert_eq!(shortage.take_wanted(), 0b1001);
        shortage.asked(plea(6), 0, || None);
        assert_eq!(shortage.take_wanted(), 0);
    }

    #[test]
    fn an_answer_may_come_before_its_appeal_is_noted() {
        let (shortage, notes) = connected();
        shortage.is_idle(0);
        shortage.asked(Plea { session: 7, number: 1 }, 0, || {
            shortage.given(5);
            Some(5)
        });
        assert_eq!(told(&notes), ["given 7 1"]);
    }

    #[test]
    fn a_program_that_is_silent_is_not_appealed_to_until_it_has_answered() {
        let (shortage, notes) = connected();
        let plea = |number| Plea { session: 7, number };
        shortage.is_idle(0);
        shortage.asked(plea(1), 0, || Some(1));
        shortage.lock().appeals[0].at -= 2 * PATIENCE;
        shortage.asked(plea(2), 0, || panic!("it is silent"));
        shortage.given(1);
        assert_eq!(told(&notes), ["given 7 2", "given 7 1"]);
        shortage.asked(plea(3), 0, || Some(2));
        assert_eq!(told(&notes), Vec::<String>::new());
    }
}

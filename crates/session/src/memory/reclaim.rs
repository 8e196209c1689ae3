//! Reclaims memory that one session needs and others hold idle: a program keeps memory that it frees, which natively the
//! driver has.
//!
//! ```text
//! program ── kdReclaim ── its worker ── server ── other workers ── notice ── programs that listen
//!                                                     │ kdReclaimDevices: of which device │ what lies idle of it, back to the driver
//! program ◀── reply ── its worker ◀─ server ◀─ other workers ◀── kdReclaimDone ─┘
//! ```
//!
//! No thread waits for long for a program that does nothing. Once only programs are waited for, a request ends after
//! [`RECLAIM_PROGRAM_TIMEOUT`] in which no memory has come free. A program that leaves a notice unanswered for so long is
//! not notified again before it answers. If no session is short of memory, no message is sent.
//!
//! Workers get more time. The memory of an ended program is free natively at once, but here only after its worker has
//! noticed and ended. So a request waits for workers that have not checked yet, or are about to end, for as long as a busy
//! machine may take.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem::take;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// How long a request waits for programs that give nothing back.
const RECLAIM_PROGRAM_TIMEOUT: Duration = Duration::from_millis(500);
/// How long the session waits for workers, which only check and answer. One that needs longer hangs.
const RECLAIM_WORKER_TIMEOUT: Duration = Duration::from_secs(20);
/// Interval of polls for free memory.
const RECLAIM_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A request of another session, by its number at the server and its own count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReclaimRequest {
    /// Number of the asking session at the server.
    pub session: u64,
    /// Number of the request, counted by the asking session.
    pub number: u64,
}

/// Connects to the other sessions.
pub trait ReclaimPeers: Send + Sync {
    /// Asks them to give back idle memory of a device. [`Reclaim::are_asked`] then tells that only their programs are waited
    /// for, [`Reclaim::note_answer`] that they are done. Returns whether they will receive the request.
    fn send_request(&self, device: u32, number: u64) -> bool;

    /// Tells another session that this one has done what it could.
    fn send_reclaim_done(&self, request: ReclaimRequest);
}

/// The reclaim requests of a session and of the others of its server.
#[derive(Default)]
pub struct Reclaim {
    peers: OnceLock<Box<dyn ReclaimPeers>>,
    state: Mutex<ReclaimState>,
    /// Signals that a request was answered.
    answered: Condvar,
}

#[derive(Default)]
struct ReclaimState {
    /// Reclaim requests of this session so far.
    last: u64,
    /// Pending requests, by their numbers.
    requests: BTreeMap<u64, RequestState>,
    /// Devices on which the program holds idle memory.
    idle: BTreeSet<u32>,
    /// Devices on which others need memory, and for which the program has not asked yet: bit n is device n.
    wanted: u32,
    /// Unanswered notices to the program, in their order.
    notices: VecDeque<PendingNotice>,
    /// The last notice that it has answered.
    last_answered: Option<u32>,
}

/// The progress of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RequestState {
    /// Some workers have not checked yet, or are about to end; and how long they are waited for.
    Sent(Duration),
    /// The programs of other sessions have been asked to free memory.
    PeersAsked,
    /// The other sessions have done what they could.
    Answered,
}

impl RequestState {
    /// Returns how long the request waits while no memory comes free.
    fn timeout(self) -> Duration {
        match self {
            Self::Sent(limit) => limit,
            Self::PeersAsked => RECLAIM_PROGRAM_TIMEOUT,
            Self::Answered => Duration::ZERO,
        }
    }
}

/// A notice that the program has not answered.
struct PendingNotice {
    number: u32,
    at: Instant,
    request: ReclaimRequest,
}

impl Reclaim {
    /// Connects the session to the others of its server; called once.
    pub fn connect(&self, peers: Box<dyn ReclaimPeers>) {
        self.peers.get_or_init(|| peers);
    }

    /// Asks the other sessions for memory of a device; none if there can be none.
    pub(crate) fn send_request(&self, device: u32) -> Option<u64> {
        let peers = self.peers.get()?;
        let mut state = self.lock();
        state.last += 1;
        let number = state.last;
        state.requests.insert(number, RequestState::Sent(RECLAIM_WORKER_TIMEOUT));
        drop(state);
        let is_sent = peers.send_request(device, number);
        if !is_sent {
            self.lock().requests.remove(&number);
        }
        is_sent.then_some(number)
    }

    /// Waits until a request is answered, or no memory has come free for long; `free` returns the free bytes.
    pub(crate) fn wait(&self, number: u64, free: impl Fn() -> u64) {
        let (mut most_free, mut since, mut previous) =
            (free(), Instant::now(), RequestState::Sent(RECLAIM_WORKER_TIMEOUT));
        let mut state = self.lock();
        while let Some(&request) = state.requests.get(&number) {
            // A shorter timeout in the same state is no progress.
            if std::mem::discriminant(&request) != std::mem::discriminant(&previous) {
                since = Instant::now();
            }
            previous = request;
            if since.elapsed() >= request.timeout() {
                break;
            }
            let (back, waited) =
                self.answered.wait_timeout(state, RECLAIM_POLL_INTERVAL).unwrap_or_else(PoisonError::into_inner);
            state = back;
            if waited.timed_out() {
                drop(state);
                let free_bytes = free();
                if free_bytes > most_free {
                    (most_free, since) = (free_bytes, Instant::now());
                }
                state = self.lock();
            }
        }
        state.requests.remove(&number);
    }

    /// Limits the wait for workers that have not checked yet, or are about to end: some were late before.
    pub fn limit_wait(&self, number: u64, limit: Duration) {
        if let Some(request @ RequestState::Sent(_)) = self.lock().requests.get_mut(&number) {
            *request = RequestState::Sent(limit.min(RECLAIM_WORKER_TIMEOUT));
        }
        self.answered.notify_all();
    }

    /// Notes that only programs of the other sessions are waited for, which live and were asked.
    pub fn are_asked(&self, number: u64) {
        self.advance(number, RequestState::PeersAsked);
    }

    /// Notes that the other sessions have done what they could for a request.
    pub fn note_answer(&self, number: u64) {
        self.advance(number, RequestState::Answered);
    }

    fn advance(&self, number: u64, to: RequestState) {
        if let Some(request) = self.lock().requests.get_mut(&number) {
            *request = to;
        }
        self.answered.notify_all();
    }

    /// Notes that the program holds idle memory of a device, and listens for notices.
    pub(crate) fn is_idle(&self, device: u32) {
        self.lock().idle.insert(device);
    }

    /// Handles a request of another session for memory of a device. `notify` notifies the program and returns the notice's
    /// number, none if it cannot be reached. Returns whether the program is waited for; if not, the session has done what it
    /// could.
    pub fn ask(&self, request: ReclaimRequest, device: u32, notify: impl FnOnce() -> Option<u32>) -> bool {
        let number = self.want(device).and_then(|is_new| {
            let number = notify();
            if number.is_none() && is_new {
                self.lock().wanted &= !bit(device);
            }
            number
        });
        let mut state = self.lock();
        match number.filter(|number| state.last_answered != Some(*number)) {
            Some(number) => {
                state.notices.push_back(PendingNotice { number, at: Instant::now(), request });
                true
            }
            None => {
                drop(state);
                self.report_completed(request);
                false
            }
        }
    }

    /// Notes the reclaim notice before the program receives it, since the program may ask at once. Returns whether that is
    /// new; none for a program without idle memory, or one that does not answer.
    fn want(&self, device: u32) -> Option<bool> {
        let mut state = self.lock();
        let is_silent = state.notices.front().is_some_and(|first| first.at.elapsed() > RECLAIM_PROGRAM_TIMEOUT);
        let is_willing = state.idle.contains(&device) && !is_silent;
        is_willing.then(|| {
            let is_new = state.wanted & bit(device) == 0;
            state.wanted |= bit(device);
            is_new
        })
    }

    /// Returns the devices on which the program is to free memory, as bits; each request is delivered once.
    pub(crate) fn take_requested_devices(&self) -> u32 {
        take(&mut self.lock().wanted)
    }

    /// Notes that the program has done what a notice asked, and those before it.
    pub(crate) fn on_notice_done(&self, number: u32) {
        let mut state = self.lock();
        state.last_answered = Some(number);
        let count = state.notices.iter().position(|pending| pending.number == number).map_or(0, |last| last + 1);
        let done: Vec<PendingNotice> = state.notices.drain(..count).collect();
        drop(state);
        done.iter().for_each(|pending| self.report_completed(pending.request));
    }

    fn report_completed(&self, request: ReclaimRequest) {
        if let Some(peers) = self.peers.get() {
            peers.send_reclaim_done(request);
        }
    }

    fn lock(&self) -> MutexGuard<'_, ReclaimState> {
        // No code under this lock panics.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the bit of a device. A session has at most half as many devices as there are bits.
fn bit(device: u32) -> u32 {
    1_u32.checked_shl(device).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// Records the lines that it receives.
    #[derive(Default, Clone)]
    struct Notes(Arc<Mutex<Vec<String>>>);

    impl ReclaimPeers for Notes {
        fn send_request(&self, device: u32, number: u64) -> bool {
            self.0.lock().unwrap().push(format!("request {device} {number}"));
            device < 8
        }

        fn send_reclaim_done(&self, request: ReclaimRequest) {
            self.0.lock().unwrap().push(format!("given {} {}", request.session, request.number));
        }
    }

    fn connected() -> (Reclaim, Notes) {
        let (reclaim, notes) = (Reclaim::default(), Notes::default());
        reclaim.connect(Box::new(notes.clone()));
        (reclaim, notes)
    }

    fn take_lines(notes: &Notes) -> Vec<String> {
        std::mem::take(&mut *notes.0.lock().unwrap())
    }

    #[test]
    fn without_a_server_there_is_no_session_to_ask() {
        assert_eq!(Reclaim::default().send_request(0), None);
    }

    #[test]
    fn a_request_waits_for_its_answer_and_no_longer_than_nothing_comes_free() {
        let (reclaim, notes) = connected();
        let number = reclaim.send_request(3).unwrap();
        assert_eq!(take_lines(&notes), ["request 3 1"]);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| reclaim.wait(number, || 0));
            reclaim.note_answer(number + 1);
            reclaim.note_answer(number);
            waiting.join().unwrap();
        });
        let (began, number, free) = (Instant::now(), reclaim.send_request(3).unwrap(), Mutex::new(0));
        reclaim.are_asked(number);
        reclaim.wait(number, || {
            let mut free = free.lock().unwrap();
            *free = (*free + 1).min(4);
            *free
        });
        assert!(
            began.elapsed() >= RECLAIM_PROGRAM_TIMEOUT + 2 * RECLAIM_POLL_INTERVAL
                && reclaim.lock().requests.is_empty()
        );
    }

    #[test]
    fn workers_that_have_not_looked_are_waited_for_longer_than_programs() {
        let (reclaim, _) = connected();
        let (began, number) = (Instant::now(), reclaim.send_request(3).unwrap());
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| reclaim.wait(number, || 0));
            std::thread::sleep(2 * RECLAIM_PROGRAM_TIMEOUT);
            assert!(!waiting.is_finished(), "a worker that is late counts as a program that does nothing");
            reclaim.are_asked(number);
            waiting.join().unwrap();
        });
        assert!(began.elapsed() >= 3 * RECLAIM_PROGRAM_TIMEOUT && reclaim.lock().requests.is_empty());
    }

    #[test]
    fn workers_that_were_late_before_are_waited_for_as_long_as_the_server_says() {
        let (reclaim, _) = connected();
        let (began, number) = (Instant::now(), reclaim.send_request(3).unwrap());
        reclaim.limit_wait(number, RECLAIM_PROGRAM_TIMEOUT);
        reclaim.limit_wait(number + 1, RECLAIM_PROGRAM_TIMEOUT);
        reclaim.wait(number, || 0);
        assert!(began.elapsed() >= RECLAIM_PROGRAM_TIMEOUT && began.elapsed() < RECLAIM_WORKER_TIMEOUT);
        assert!(reclaim.lock().requests.is_empty());
    }

    #[test]
    fn reclaim_without_peers_does_not_wait() {
        let (reclaim, notes) = connected();
        assert_eq!(reclaim.send_request(8), None);
        assert!(take_lines(&notes) == ["request 8 1"] && reclaim.lock().requests.is_empty());
    }

    #[test]
    fn only_a_program_that_holds_memory_of_the_device_is_notified() {
        let (reclaim, notes) = connected();
        let request = |number| ReclaimRequest { session: 7, number };
        reclaim.is_idle(1);
        reclaim.ask(request(1), 0, || panic!("it has nothing"));
        reclaim.ask(request(2), 1, || None);
        assert_eq!(take_lines(&notes), ["given 7 1", "given 7 2"]);
        reclaim.ask(request(3), 1, || Some(1));
        reclaim.ask(request(4), 1, || Some(2));
        reclaim.ask(request(5), 1, || Some(3));
        reclaim.on_notice_done(9);
        assert_eq!(take_lines(&notes), Vec::<String>::new());
        reclaim.on_notice_done(2);
        assert_eq!(take_lines(&notes), ["given 7 3", "given 7 4"]);
        reclaim.on_notice_done(3);
        assert_eq!(take_lines(&notes), ["given 7 5"]);
    }

    #[test]
    fn a_program_hears_once_of_each_device_that_is_wanted() {
        let (reclaim, _) = connected();
        let request = |number| ReclaimRequest { session: 7, number };
        [0, 3].into_iter().for_each(|device| reclaim.is_idle(device));
        reclaim.ask(request(1), 3, || {
            assert_eq!(reclaim.take_requested_devices(), 0b1000);
            Some(1)
        });
        assert_eq!(reclaim.take_requested_devices(), 0);
        reclaim.ask(request(2), 0, || Some(2));
        reclaim.ask(request(3), 3, || Some(3));
        // A program that cannot be reached now has an earlier notice all the same.
        reclaim.ask(request(4), 0, || None);
        reclaim.ask(request(5), 1, || panic!("it has nothing"));
        assert_eq!(reclaim.take_requested_devices(), 0b1001);
        reclaim.ask(request(6), 0, || None);
        assert_eq!(reclaim.take_requested_devices(), 0);
    }

    #[test]
    fn an_answer_may_come_before_its_notice_is_noted() {
        let (reclaim, notes) = connected();
        reclaim.is_idle(0);
        reclaim.ask(ReclaimRequest { session: 7, number: 1 }, 0, || {
            reclaim.on_notice_done(5);
            Some(5)
        });
        assert_eq!(take_lines(&notes), ["given 7 1"]);
    }

    #[test]
    fn a_program_that_is_silent_is_not_notified_until_it_has_answered() {
        let (reclaim, notes) = connected();
        let request = |number| ReclaimRequest { session: 7, number };
        reclaim.is_idle(0);
        reclaim.ask(request(1), 0, || Some(1));
        reclaim.lock().notices[0].at -= 2 * RECLAIM_PROGRAM_TIMEOUT;
        reclaim.ask(request(2), 0, || panic!("it is silent"));
        reclaim.on_notice_done(1);
        assert_eq!(take_lines(&notes), ["given 7 2", "given 7 1"]);
        reclaim.ask(request(3), 0, || Some(2));
        assert_eq!(take_lines(&notes), Vec::<String>::new());
    }
}

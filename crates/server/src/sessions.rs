//! The table of sessions, and the worker of each.
//!
//! It lives only in memory. A server that restarts begins an empty one, because its workers died with it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use katydid_wire::key::SessionKey;
use rustix::net::{Shutdown, shutdown};

use crate::control::{self, Message};
use crate::reclaim_credit::RateLimitKey;
use crate::reclaim_requests::{ReclaimRequest, ReclaimRequests};
use crate::slots::PeerOrigin;
use crate::view::{ReservedView, SessionView, SessionsView};
use crate::workers::handle::{SessionId, WorkerHandle};

/// Longest wait of a program for workers that are about to end: a GPU takes some tenths of a second to give back what one held.
const WORKER_END_TIMEOUT: Duration = Duration::from_secs(5);
/// Fewest bytes of device memory that are worth the wait.
const MIN_AWAITED_BYTES: u64 = 256 << 20;

/// Why a program was not admitted.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum AdmissionError {
    /// As many sessions as the server allows are running.
    #[error(
        "the server allows {most} sessions at a time and all are taken; end one (katydid ps lists them), or raise serve --max-sessions"
    )]
    Full { most: usize },
    /// As many sessions of this peer as the server allows are running.
    #[error(
        "the server allows one address {most} sessions at a time and all of them are taken; end one, or raise serve --peer-sessions"
    )]
    PeerFull { most: usize },
    /// The server is stopping.
    #[error("the server is stopping; connect again when it is back")]
    Stopping,
}

/// What is known of a program when it is admitted.
#[derive(Debug, Clone, Default)]
pub(crate) struct Program {
    pub(crate) name: String,
    pub(crate) pid: u32,
    pub(crate) program: String,
    pub(crate) peer: String,
    pub(crate) link: &'static str,
    /// The origin whose limits apply; `None` if no limits apply.
    pub(crate) origin: Option<PeerOrigin>,
}

/// All sessions, and slots whose worker is still to come.
#[derive(Debug)]
pub(crate) struct Sessions {
    most: usize,
    /// Most sessions of one peer over a network.
    most_of_peer: usize,
    inner: Mutex<Inner>,
    /// Notified when a session has ended, or the server stops.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Inner {
    last: SessionId,
    table: BTreeMap<SessionId, SessionView>,
    /// The origins of sessions with limits.
    origins: BTreeMap<SessionId, PeerOrigin>,
    /// The key that attaches to a session, and its worker.
    served: BTreeMap<SessionId, (SessionKey, WorkerHandle)>,
    /// Sessions whose program is gone, and whose worker is about to end.
    ending: BTreeSet<SessionId>,
    reclaim: ReclaimRequests,
    /// Slots reserved for programs to come: the key, and the connection of the process that holds the reservation.
    reserved: BTreeMap<SessionId, (SessionKey, Arc<OwnedFd>)>,
    /// Control sockets of processes that save the worker of a session.
    savers: BTreeMap<SessionId, Arc<OwnedFd>>,
    stopping: bool,
}

impl Inner {
    fn send_line(&self, id: SessionId, line: &str) -> bool {
        self.served.get(&id).is_some_and(|(_, worker)| worker.send_line(id, line))
    }

    /// Asks all other sessions for their idle memory of a device. One that is about to end frees all its memory: the request
    /// waits for it.
    fn send_request(&mut self, (id, number): ReclaimRequest, device: &str) {
        let line = format!("give {id} {number} {device}");
        let others = self.served.keys().copied().filter(|other| *other != id);
        let peers = others.filter(|other| self.ending.contains(other) || self.send_line(*other, &line));
        let peers: Vec<_> = peers.map(|other| (other, self.payer(other))).collect();
        self.reclaim.add((id, number), &peers);
    }

    /// Notes that a session has asked its program for a reclaim request, or has done what it could.
    fn on_reply(&mut self, id: SessionId, request: ReclaimRequest, is_given: bool) {
        if !self.ending.contains(&id) {
            self.reclaim.on_reply(id, request, is_given);
        }
    }

    /// Sends the requesting sessions their next lines.
    fn answer(&mut self) {
        for (id, line) in self.reclaim.next_lines() {
            // A session that is gone needs no answer.
            let _ = self.send_line(id, &line);
        }
    }

    /// Returns the owner of a session's credit.
    fn payer(&self, id: SessionId) -> RateLimitKey {
        RateLimitKey::of(id, self.origins.get(&id).copied())
    }

    /// Returns the slot reserved with this key. Every key is compared, whether or not one before it matched. A limited peer takes
    /// no slot of another peer, since the slot would then count for neither.
    fn reserved(&self, key: &SessionKey, origin: Option<PeerOrigin>) -> Option<SessionId> {
        let matching = self.reserved.iter().filter(|(_, (known, _))| known.matches(key) && !key.is_none());
        let limited = origin.filter(|origin| origin.is_limited());
        let is_theirs = |id: &SessionId| limited.is_none_or(|limited| self.origins.get(id) == Some(&limited));
        matching.fold(None, |_, (id, _)| Some(*id)).filter(is_theirs)
    }

    /// Takes the slot reserved with this key. The process that holds the reservation is released.
    fn claim(&mut self, key: &SessionKey, origin: Option<PeerOrigin>) -> Option<SessionId> {
        let id = self.reserved(key, origin).filter(|_| !self.stopping)?;
        if let Some((_, keeper)) = self.reserved.remove(&id) {
            let _ = shutdown(&*keeper, Shutdown::Both);
        }
        Some(id)
    }

    /// Takes a new slot, if there is one for this peer. Returns its number.
    fn new_slot(&mut self, limits: &Sessions, origin: Option<PeerOrigin>) -> Result<SessionId, AdmissionError> {
        match self.refusal(limits, origin) {
            Some(refusal) => Err(refusal),
            None => {
                self.last += 1;
                Ok(self.last)
            }
        }
    }

    /// Returns why there is no slot for a session of this peer; none if there is one.
    fn refusal(&self, limits: &Sessions, origin: Option<PeerOrigin>) -> Option<AdmissionError> {
        let of_peer = |origin| self.origins.values().filter(|known| **known == origin).count();
        match origin.filter(|origin| origin.is_limited()) {
            _ if self.stopping => Some(AdmissionError::Stopping),
            _ if self.table.len() >= limits.most => Some(AdmissionError::Full { most: limits.most }),
            Some(origin) if of_peer(origin) >= limits.most_of_peer => {
                Some(AdmissionError::PeerFull { most: limits.most_of_peer })
            }
            _ => None,
        }
    }

    fn is_ending_with_much(&self, id: SessionId) -> bool {
        let held = || self.table.get(&id)?.device_memory;
        self.ending.contains(&id) && held().is_some_and(|held| held >= MIN_AWAITED_BYTES)
    }
}

impl Sessions {
    pub(crate) fn new(most: usize, most_of_peer: usize) -> Self {
        Self { most, most_of_peer, inner: Mutex::default(), changed: Condvar::new() }
    }

    /// Returns each worker's process id, and the bytes of device memory that the worker last reported.
    pub(crate) fn workers_memory(&self) -> Vec<(u32, u64)> {
        let inner = self.lock();
        let served = inner.table.values().filter(|session| session.worker_pid != 0);
        served.map(|session| (session.worker_pid, session.device_memory.unwrap_or(0))).collect()
    }

    /// Returns how many sessions are allowed at a time.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// Returns how many sessions one peer over a network may have.
    pub(crate) fn most_of_peer(&self) -> usize {
        self.most_of_peer
    }

    /// Checks that a program of this peer would be admitted now. One with a reserved slot always is.
    pub(crate) fn check_room(&self, origin: Option<PeerOrigin>, slot: &SessionKey) -> Result<(), AdmissionError> {
        let inner = self.wait_for_ends(origin, slot);
        match inner.refusal(self, origin).filter(|_| inner.reserved(slot, origin).is_none()) {
            Some(refusal) => Err(refusal),
            None => Ok(()),
        }
    }

    /// Takes a slot in the table, before a worker is found: the one reserved with the key `slot`, or another one. Its worker is 0
    /// until [`Sessions::serve`]. Waits a little for sessions that are about to end.
    pub(crate) fn admit(&self, program: Program, slot: &SessionKey) -> Result<SessionId, AdmissionError> {
        let mut inner = self.wait_for_ends(program.origin, slot);
        let id = match inner.claim(slot, program.origin) {
            Some(id) => id,
            None => inner.new_slot(self, program.origin)?,
        };
        inner.origins.remove(&id);
        inner.origins.extend(program.origin.map(|origin| (id, origin)));
        inner.table.insert(id, view(id, program));
        Ok(id)
    }

    /// Reserves a slot for a program to come, which will name it by `key`. Returns none if `slot` is the key of a reserved one
    /// already. `keeper` is the connection of the process that asked for this. It is shut down once the program has come.
    pub(crate) fn reserve(
        &self,
        program: Program,
        slot: &SessionKey,
        key: SessionKey,
        keeper: OwnedFd,
    ) -> Result<Option<SessionId>, AdmissionError> {
        let mut inner = self.wait_for_ends(program.origin, slot);
        if inner.reserved(slot, program.origin).is_some() {
            return Ok(None);
        }
        let id = inner.new_slot(self, program.origin)?;
        inner.origins.extend(program.origin.map(|origin| (id, origin)));
        inner.table.insert(id, view(id, program));
        inner.reserved.insert(id, (key, Arc::new(keeper)));
        Ok(Some(id))
    }

    /// Ends a reservation. If its program has not come, the slot is free.
    pub(crate) fn release(&self, id: SessionId) {
        if self.lock().reserved.remove(&id).is_some() {
            self.end(id);
        }
    }

    /// Waits for sessions that are about to end. Natively a process has ended when its memory is free again, so the next one
    /// finds it. Here a program may begin while the worker of an earlier one ends. It waits as long as that worker holds much
    /// memory, or has the last slot.
    fn wait_for_ends(&self, origin: Option<PeerOrigin>, slot: &SessionKey) -> MutexGuard<'_, Inner> {
        let inner = self.lock();
        let before = inner.ending.clone();
        let is_held_up = |inner: &mut Inner| {
            let is_without = || inner.reserved(slot, origin).is_none() && inner.refusal(self, origin).is_some();
            let wants_slot = !inner.ending.is_empty() && is_without();
            !inner.stopping && (wants_slot || before.iter().any(|id| inner.is_ending_with_much(*id)))
        };
        let waited = self.changed.wait_timeout_while(inner, WORKER_END_TIMEOUT, is_held_up);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Notes which worker serves the session.
    pub(crate) fn serve(&self, id: SessionId, worker: &WorkerHandle) {
        self.change(id, |session| {
            session.worker_pid = worker.pid();
            session.driver = worker.driver().map(|driver| driver.name.clone());
        });
    }

    /// Lets a process that has the session's key attach to it.
    pub(crate) fn open(&self, id: SessionId, key: SessionKey, worker: WorkerHandle) {
        let mut inner = self.lock();
        if inner.table.contains_key(&id) {
            inner.served.insert(id, (key, worker));
        }
    }

    /// Notes that another program has the session.
    pub(crate) fn describe(&self, id: SessionId, program: Program) {
        self.change(id, |session| {
            let known = std::mem::replace(session, view(id, program));
            session.started = known.started;
            (session.worker_pid, session.driver) = (known.worker_pid, known.driver);
            (session.device_memory, session.calls) = (known.device_memory, known.calls);
        });
    }

    /// Finds the session with this key, and its worker. Every key is compared, whether or not one before it matched.
    pub(crate) fn find(&self, key: &SessionKey) -> Option<(SessionId, WorkerHandle)> {
        let inner = self.lock();
        let matching = inner.served.iter().filter(|(_, (known, _))| known.matches(key) && !key.is_none());
        matching.fold(None, |_, (id, (_, worker))| Some((*id, worker.clone())))
    }

    /// Notes the session's resource usage.
    pub(crate) fn usage(&self, id: SessionId, device_memory: u64, calls: u64) {
        self.change(id, |session| {
            session.device_memory = Some(device_memory);
            session.calls = Some(calls);
        });
    }

    /// Notes that no process uses the session any more, and its worker is about to end.
    pub(crate) fn is_ending(&self, id: SessionId) {
        let mut inner = self.lock();
        if inner.table.contains_key(&id) && inner.ending.insert(id) {
            let payer = inner.payer(id);
            inner.reclaim.is_ending(id, payer);
        }
    }

    /// Notes that a process saves the session's worker. It reports on this socket before it ends the worker.
    pub(crate) fn is_saved_by(&self, id: SessionId, saver: &Arc<OwnedFd>) {
        let mut inner = self.lock();
        if inner.table.contains_key(&id) {
            inner.savers.insert(id, Arc::clone(saver));
        }
    }

    /// Returns whether the process that saved the session's worker has ended it.
    pub(crate) fn was_saved(&self, id: SessionId) -> bool {
        let saver = self.lock().savers.remove(&id);
        let mut words = saver.iter().flat_map(|saver| std::iter::from_fn(|| control::receive(saver).ok().flatten()));
        words.any(|word| word == Message::Saved)
    }

    /// Asks the other sessions for idle memory, for a session that finds none on a device. The server answers when they are done.
    pub(crate) fn send_request(&self, id: SessionId, number: u64, device: &str) {
        let mut inner = self.lock();
        inner.send_request((id, number), device);
        inner.answer();
    }

    /// Notes that a session has asked its program for another one's reclaim request.
    pub(crate) fn on_program_asked(&self, id: SessionId, request: ReclaimRequest) {
        let mut inner = self.lock();
        inner.on_reply(id, request, false);
        inner.answer();
    }

    /// Notes that a session has done what it could for another one's reclaim request.
    pub(crate) fn on_request_done(&self, id: SessionId, request: ReclaimRequest) {
        let mut inner = self.lock();
        inner.on_reply(id, request, true);
        inner.answer();
    }

    /// Returns the session's origin.
    pub(crate) fn origin(&self, id: SessionId) -> Option<PeerOrigin> {
        self.lock().origins.get(&id).copied()
    }

    /// Frees the slot. Returns the session that had it.
    pub(crate) fn end(&self, id: SessionId) -> Option<SessionView> {
        let mut inner = self.lock();
        self.changed.notify_all();
        inner.ending.remove(&id);
        inner.reclaim.forget(id);
        inner.savers.remove(&id);
        inner.reserved.remove(&id);
        inner.served.remove(&id);
        inner.origins.remove(&id);
        inner.answer();
        inner.table.remove(&id)
    }

    /// Stops admitting programs.
    pub(crate) fn stop(&self) {
        self.lock().stopping = true;
        self.changed.notify_all();
    }

    /// Waits until no session is left, at most for `limit`.
    pub(crate) fn wait_until_none(&self, limit: Duration) {
        let waited = self.changed.wait_timeout_while(self.lock(), limit, |inner| !inner.table.is_empty());
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// Returns all sessions that have a worker, and the slots reserved for programs to come; both oldest first.
    pub(crate) fn view(&self) -> SessionsView {
        let inner = self.lock();
        let sessions = inner.table.values().filter(|session| session.worker_pid != 0).cloned().collect();
        let reserved_sessions = inner.table.values().filter(|session| inner.reserved.contains_key(&session.id));
        SessionsView { sessions, reserved: reserved_sessions.map(reserved_view).collect() }
    }

    fn change(&self, id: SessionId, change: impl FnOnce(&mut SessionView)) {
        if let Some(session) = self.lock().table.get_mut(&id) {
            change(session);
        }
    }

    /// Locks the table. No invariant spans two fields, so the table of a thread that panicked is usable.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn view(id: SessionId, program: Program) -> SessionView {
    SessionView {
        id,
        name: program.name,
        pid: program.pid,
        program: program.program,
        peer: program.peer,
        link: program.link.to_owned(),
        started: now(),
        worker_pid: 0,
        driver: None,
        device_memory: None,
        calls: None,
    }
}

fn reserved_view(slot: &SessionView) -> ReservedView {
    let SessionView { id, name, pid, program, peer, started, .. } = slot.clone();
    ReservedView { id, name, pid, program, peer, started }
}

/// Makes a key that no process can guess.
///
/// # Errors
///
/// The system gives no random bytes.
pub(crate) fn new_key() -> io::Result<SessionKey> {
    let mut key = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut key)?;
    Ok(SessionKey(key))
}

/// Returns seconds since 1970; 0 on a machine whose clock is before.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reclaim_credit::RECLAIM_TIMEOUT;

    fn admit(sessions: &Sessions) -> Result<SessionId, AdmissionError> {
        sessions.admit(Program::default(), &SessionKey::NONE)
    }

    #[test]
    fn a_full_table_refuses_until_a_session_ends() {
        let sessions = Sessions::new(1, 1);
        let first = admit(&sessions).unwrap();
        assert_eq!(admit(&sessions), Err(AdmissionError::Full { most: 1 }));
        sessions.end(first).unwrap();
        assert_eq!(admit(&sessions), Ok(2));
    }

    #[test]
    fn a_peer_of_a_network_has_its_share_and_others_the_rest() {
        let sessions = Sessions::new(4, 2);
        let of = |origin| sessions.admit(Program { origin: Some(origin), ..Program::default() }, &SessionKey::NONE);
        let address = |last| PeerOrigin::of(std::net::IpAddr::from([10, 0, 0, last]));
        assert_eq!((of(address(1)), of(address(1))), (Ok(1), Ok(2)));
        assert_eq!(of(address(1)), Err(AdmissionError::PeerFull { most: 2 }));
        assert_eq!(of(address(2)), Ok(3));
        sessions.end(1).unwrap();
        assert_eq!((of(address(1)), of(address(1))), (Ok(4), Err(AdmissionError::PeerFull { most: 2 })));
    }

    #[test]
    fn a_user_of_this_machine_may_have_all_sessions() {
        let sessions = Sessions::new(2, 1);
        let of = |user| {
            sessions.admit(Program { origin: Some(PeerOrigin::User(user)), ..Program::default() }, &SessionKey::NONE)
        };
        assert_eq!((of(0), of(0), of(0)), (Ok(1), Ok(2), Err(AdmissionError::Full { most: 2 })));
    }

    #[test]
    fn a_stopping_server_admits_no_program() {
        let sessions = Sessions::new(1, 1);
        sessions.stop();
        assert_eq!(admit(&sessions), Err(AdmissionError::Stopping));
    }

    /// Admits a program while the first session, which held `held` bytes, is about to end. `over` ends it.
    fn admit_after(most: usize, held: u64, over: impl Fn(&Sessions) + Sync) -> Result<SessionId, AdmissionError> {
        let sessions = Sessions::new(most, most);
        let first = admit(&sessions).unwrap();
        sessions.usage(first, held, 1);
        sessions.is_ending(first);
        std::thread::scope(|scope| {
            let next = scope.spawn(|| admit(&sessions));
            over(&sessions);
            next.join().unwrap()
        })
    }

    #[test]
    fn a_program_waits_for_a_worker_that_ends_with_much_or_has_the_last_slot() {
        for (most, held) in [(8, MIN_AWAITED_BYTES), (1, 0)] {
            let later = |sessions: &Sessions| {
                std::thread::sleep(Duration::from_millis(200));
                assert_eq!(sessions.lock().last, 1, "it did not wait");
                sessions.end(1).unwrap();
            };
            assert_eq!(admit_after(most, held, later), Ok(2));
        }
    }

    #[test]
    fn a_program_does_not_wait_for_little_nor_for_good_nor_for_a_server_that_stops() {
        let began = std::time::Instant::now();
        assert_eq!(admit_after(8, MIN_AWAITED_BYTES - 1, |_| {}), Ok(2));
        assert_eq!(admit_after(8, MIN_AWAITED_BYTES, Sessions::stop), Err(AdmissionError::Stopping));
        assert!(began.elapsed() < WORKER_END_TIMEOUT);
        assert_eq!(admit_after(8, MIN_AWAITED_BYTES, |_| {}), Ok(2));
    }

    #[test]
    fn session_keys_are_distinct_and_never_zero() {
        let (one, other) = (new_key().unwrap(), new_key().unwrap());
        assert!(!one.matches(&other) && !one.is_none());
        assert!(Sessions::new(1, 1).find(&SessionKey::NONE).is_none());
    }

    /// Sessions with workers whose received lines a test can read; in their order.
    fn served(count: u64) -> (Sessions, Vec<OwnedFd>) {
        let sessions = Sessions::new(8, 8);
        let workers = (0..count).map(|_| serve_next(&sessions, None)).collect();
        (sessions, workers)
    }

    /// Adds a session with a worker; returns the worker's end.
    fn serve_next(sessions: &Sessions, origin: Option<PeerOrigin>) -> OwnedFd {
        let (server_end, worker_end) = control::pair().unwrap();
        let id = sessions.admit(Program { origin, ..Program::default() }, &SessionKey::NONE).unwrap();
        sessions.open(id, SessionKey([7; 16]), WorkerHandle::of_session(server_end, id));
        worker_end
    }

    /// Lets `time` pass for all that wait and are waited for.
    fn pass(sessions: &Sessions, time: Duration) {
        sessions.lock().reclaim.pass(time);
    }

    /// The limit in milliseconds that the server sent a session for this request, which must be the only line.
    fn read_limit(worker: &OwnedFd, number: u64) -> Option<u64> {
        let lines = read_lines(worker);
        let [line] = lines.as_slice() else { return None };
        line.strip_prefix(&format!("wait {number} "))?.parse().ok()
    }

    /// The lines that a worker has received since the last call.
    fn read_lines(worker: &OwnedFd) -> Vec<String> {
        let mut buffer = [0; 256];
        let next = || {
            rustix::net::recv(worker, &mut buffer[..], rustix::net::RecvFlags::DONTWAIT)
                .ok()
                .map(|got| String::from_utf8_lossy(&buffer[..got.1]).into_owned())
        };
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn a_request_is_answered_when_all_others_have_given_or_are_gone() {
        let (sessions, workers) = served(3);
        sessions.send_request(1, 5, "0000:01:00.0");
        assert_eq!(
            [0, 1, 2].map(|at| read_lines(&workers[at])),
            [vec![], vec!["give 1 5 0000:01:00.0".to_owned()], vec!["give 1 5 0000:01:00.0".to_owned()]]
        );
        sessions.on_request_done(2, (1, 4));
        sessions.on_request_done(2, (1, 5));
        sessions.on_request_done(2, (1, 5));
        assert_eq!(read_lines(&workers[0]), Vec::<String>::new());
        sessions.end(3).unwrap();
        assert_eq!(read_lines(&workers[0]), ["answered 5"]);
    }

    #[test]
    fn a_session_that_is_short_hears_when_only_programs_are_waited_for() {
        let (sessions, workers) = served(4);
        sessions.is_ending(4);
        sessions.send_request(1, 5, "0");
        sessions.on_program_asked(2, (1, 5));
        sessions.on_request_done(3, (1, 5));
        // Its answer does not count: its memory is free when it ends.
        sessions.on_request_done(4, (1, 5));
        assert_eq!(read_lines(&workers[0]), Vec::<String>::new());
        sessions.end(4).unwrap();
        assert_eq!(read_lines(&workers[0]), ["asked 5"]);
        sessions.on_request_done(2, (1, 5));
        assert_eq!(read_lines(&workers[0]), ["answered 5"]);
    }

    #[test]
    fn a_worker_that_stands_still_is_waited_for_once() {
        let (sessions, workers) = served(3);
        sessions.is_ending(3);
        sessions.send_request(1, 1, "0");
        pass(&sessions, RECLAIM_TIMEOUT);
        sessions.send_request(1, 2, "0");
        assert_eq!(read_lines(&workers[0]), ["answered 2"]);
        assert_eq!(read_lines(&workers[1]), ["give 1 1 0", "give 1 2 0"]);
        sessions.on_program_asked(2, (0, 0));
        sessions.send_request(1, 3, "0");
        assert_eq!(read_lines(&workers[0]), ["answered 3"], "what it says of another request is not an answer");
        sessions.on_program_asked(2, (1, 1));
        sessions.send_request(1, 4, "0");
        assert_eq!(read_lines(&workers[0]), ["wait 4 500"], "it has looked again, and has had its time");
    }

    #[test]
    fn a_worker_that_was_late_is_not_waited_for_as_long_again() {
        let (sessions, workers) = served(2);
        sessions.send_request(1, 1, "0");
        pass(&sessions, Duration::from_secs(19));
        sessions.on_request_done(2, (1, 1));
        assert_eq!(read_lines(&workers[0]), ["answered 1"]);
        sessions.send_request(1, 2, "0");
        assert!(read_limit(&workers[0], 2).is_some_and(|millis| millis < 2000));
        sessions.on_request_done(2, (1, 2));
        assert_eq!(read_lines(&workers[0]), ["answered 2"]);
    }

    #[test]
    fn others_that_answer_in_time_do_not_lengthen_the_wait_for_one_that_is_late() {
        let (sessions, workers) = served(3);
        sessions.send_request(1, 1, "0");
        sessions.on_request_done(2, (1, 1));
        pass(&sessions, 2 * RECLAIM_TIMEOUT);
        sessions.on_request_done(3, (1, 1));
        assert_eq!(read_lines(&workers[0]), ["answered 1"]);
        sessions.send_request(1, 2, "0");
        assert_eq!(read_lines(&workers[0]), Vec::<String>::new(), "the second has its whole time");
        sessions.on_request_done(2, (1, 2));
        assert_eq!(read_lines(&workers[0]), ["wait 2 500"]);
        sessions.on_request_done(3, (1, 2));
        assert_eq!(read_lines(&workers[0]), ["answered 2"]);
        sessions.send_request(1, 3, "0");
        pass(&sessions, Duration::from_secs(3));
        sessions.on_program_asked(2, (1, 3));
        let limit = read_limit(&workers[0], 3);
        assert!(limit.is_some_and(|millis| (3500..19_500).contains(&millis)), "its program has its time: {limit:?}");
        sessions.on_request_done(2, (1, 3));
        assert_eq!(read_lines(&workers[0]), ["wait 3 500"]);
        sessions.on_request_done(3, (1, 3));
        assert_eq!(read_lines(&workers[0]), ["answered 3"]);
    }

    #[test]
    fn a_worker_that_answers_one_session_and_lets_another_wait_is_late() {
        let (sessions, workers) = served(3);
        sessions.send_request(1, 1, "0");
        sessions.send_request(3, 1, "0");
        for (id, request) in [(3, (1, 1)), (1, (3, 1)), (2, (1, 1))] {
            sessions.on_request_done(id, request);
        }
        pass(&sessions, Duration::from_secs(19));
        sessions.on_request_done(2, (3, 1));
        assert_eq!([0, 2].map(|at| read_lines(&workers[at]).pop()), [(); 2].map(|()| Some("answered 1".to_owned())));
        sessions.send_request(1, 2, "0");
        sessions.on_request_done(3, (1, 2));
        assert!(read_limit(&workers[0], 2).is_some_and(|millis| millis < 2000));
    }

    #[test]
    fn waits_for_an_ending_worker_are_charged_to_its_client() {
        let peer = Some(PeerOrigin::of(std::net::IpAddr::from([10, 0, 0, 1])));
        for (before_end, within_end) in [(19, 0), (0, 19), (10, 9)] {
            let (sessions, workers) = served(1);
            let _late = serve_next(&sessions, peer);
            sessions.send_request(1, 1, "0");
            pass(&sessions, Duration::from_secs(before_end));
            sessions.is_ending(2);
            pass(&sessions, Duration::from_secs(within_end));
            sessions.end(2).unwrap();
            assert_eq!(read_lines(&workers[0]), ["answered 1"]);
            let _next = serve_next(&sessions, peer);
            sessions.send_request(1, 2, "0");
            let limit = read_limit(&workers[0], 2);
            assert!(limit.is_some_and(|millis| millis < 3000), "{limit:?}");
        }
    }

    #[test]
    fn an_end_for_which_no_session_waits_costs_nothing() {
        let peer = Some(PeerOrigin::of(std::net::IpAddr::from([10, 0, 0, 1])));
        let (sessions, workers) = served(1);
        let _ending = serve_next(&sessions, peer);
        sessions.is_ending(2);
        pass(&sessions, Duration::from_secs(19));
        sessions.end(2).unwrap();
        let _next = serve_next(&sessions, peer);
        sessions.send_request(1, 1, "0");
        assert_eq!(read_lines(&workers[0]), Vec::<String>::new(), "it has its whole time");
    }

    #[test]
    fn a_new_session_of_a_peer_that_is_silent_is_not_waited_for_as_long() {
        let peer = |last| Some(PeerOrigin::of(std::net::IpAddr::from([10, 0, 0, last])));
        for (other, is_limited) in [(1, true), (2, false)] {
            let (sessions, workers) = served(1);
            let _silent = serve_next(&sessions, peer(1));
            sessions.send_request(1, 1, "0");
            pass(&sessions, Duration::from_secs(19));
            let _next = serve_next(&sessions, peer(other));
            sessions.send_request(1, 2, "0");
            assert_eq!(read_limit(&workers[0], 2).is_some_and(|millis| millis < 2000), is_limited);
        }
    }

    /// Reserves a slot: the outcome, the key and the keeper's end.
    fn reserved(sessions: &Sessions) -> (Result<Option<SessionId>, AdmissionError>, SessionKey, OwnedFd) {
        let (key, (server_end, keeper_end)) = (new_key().unwrap(), control::pair().unwrap());
        (sessions.reserve(Program::default(), &SessionKey::NONE, key, server_end), key, keeper_end)
    }

    #[test]
    fn a_slot_that_is_kept_is_that_of_the_program_that_has_its_key() {
        let sessions = Sessions::new(1, 1);
        let (slot, key, keeper) = reserved(&sessions);
        assert_eq!(slot, Ok(Some(1)));
        let listed = || (sessions.view().sessions.len(), sessions.view().reserved.len());
        assert_eq!(listed(), (0, 1));
        assert_eq!(reserved(&sessions).0, Err(AdmissionError::Full { most: 1 }));
        assert_eq!(admit(&sessions), Err(AdmissionError::Full { most: 1 }));
        assert_eq!(sessions.check_room(None, &SessionKey::NONE), Err(AdmissionError::Full { most: 1 }));
        assert_eq!(sessions.check_room(None, &key), Ok(()));
        // A program below this limit gets no second reservation.
        let (server_end, _keeper_end) = control::pair().unwrap();
        assert_eq!(sessions.reserve(Program::default(), &key, new_key().unwrap(), server_end), Ok(None));
        let program = Program { name: "train".to_owned(), ..Program::default() };
        assert_eq!(sessions.admit(program.clone(), &key), Ok(1));
        assert!(control::receive(&keeper).unwrap().is_none(), "the connection is shut down");
        assert_eq!(listed(), (0, 0), "it waits for its worker");
        sessions.release(1);
        assert_eq!(sessions.admit(program, &key), Err(AdmissionError::Full { most: 1 }));
        assert_eq!(sessions.end(1).unwrap().name, "train");
    }

    #[test]
    fn a_slot_that_is_kept_for_one_address_is_not_another_s() {
        let sessions = Sessions::new(3, 1);
        let of = |last| Program {
            origin: Some(PeerOrigin::of(std::net::IpAddr::from([10, 0, 0, last]))),
            ..Program::default()
        };
        let (key, (server_end, _keeper_end)) = (new_key().unwrap(), control::pair().unwrap());
        assert_eq!(sessions.reserve(of(1), &SessionKey::NONE, key, server_end), Ok(Some(1)));
        assert_eq!(sessions.admit(of(2), &key), Ok(2), "a slot of its own");
        assert_eq!(sessions.admit(of(2), &key), Err(AdmissionError::PeerFull { most: 1 }));
        assert_eq!(sessions.admit(of(1), &key), Ok(1));
    }

    #[test]
    fn a_slot_that_is_not_kept_any_more_is_free() {
        let sessions = Sessions::new(1, 1);
        let (slot, key, _keeper) = reserved(&sessions);
        sessions.release(slot.unwrap().unwrap());
        assert_eq!(sessions.admit(Program::default(), &key), Ok(2));
        sessions.end(2).unwrap();
        let (_, key, _keeper) = reserved(&sessions);
        sessions.stop();
        assert_eq!(sessions.admit(Program::default(), &key), Err(AdmissionError::Stopping));
    }

    #[test]
    fn the_end_of_a_worker_that_was_saved_is_known_as_such() {
        let (sessions, _workers) = served(2);
        for (id, words) in [(1, &[&b"saved"[..]][..]), (2, &[])] {
            let (server_end, saver_end) = control::pair().unwrap();
            sessions.is_saved_by(id, &Arc::new(server_end));
            for word in words {
                rustix::net::send(&saver_end, word, rustix::net::SendFlags::empty()).unwrap();
            }
            drop(saver_end);
            assert_eq!(sessions.was_saved(id), !words.is_empty());
        }
    }

    #[test]
    fn a_request_is_answered_at_once_without_peers_and_waits_for_those_that_end() {
        let (sessions, workers) = served(1);
        sessions.send_request(1, 1, "0");
        assert_eq!(read_lines(&workers[0]), ["answered 1"]);
        let (sessions, workers) = served(2);
        sessions.is_ending(2);
        sessions.send_request(1, 1, "0");
        assert_eq!([0, 1].map(|at| read_lines(&workers[at])), [vec![], Vec::<String>::new()]);
        sessions.end(2).unwrap();
        assert_eq!(read_lines(&workers[0]), ["answered 1"]);
    }

    #[test]
    fn only_sessions_with_a_worker_are_listed() {
        let sessions = Sessions::new(8, 8);
        let waiting = admit(&sessions).unwrap();
        let served = admit(&sessions).unwrap();
        let (control, _worker) = control::pair().unwrap();
        sessions.serve(served, &WorkerHandle::of_session(control, served));
        sessions.usage(served, 4096, 7);
        let list = sessions.view().sessions;
        assert_eq!(list.len(), 1);
        assert_eq!((list[0].worker_pid, list[0].device_memory, list[0].calls), (1, Some(4096), Some(7)));
        assert_eq!(sessions.end(waiting).unwrap().worker_pid, 0);
    }
}

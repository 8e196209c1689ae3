//! The table of sessions: who is served by which worker.
//!
//! It lives in memory only. A server that restarts begins an empty one, because its workers died with it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read as _};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use katydid_wire::key::SessionKey;

use crate::minder::Mind;
use crate::view::SessionView;

/// How long a program waits at most for workers that are about to end: a GPU takes some tenths of a second to give back
/// what one held.
const END_PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of device memory that are worth the wait.
const MUCH: u64 = 256 << 20;

/// Names a session for as long as the server runs; counts from 1.
pub(crate) type SessionId = u64;

/// Why a program was not let in.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum AdmissionError {
    /// As many sessions as the server allows are running.
    #[error(
        "the server allows {most} sessions at a time and all are taken; end one (katydid ps lists them), or raise serve --max-sessions"
    )]
    Full { most: usize },
    /// The server was told to stop.
    #[error("the server is stopping; connect again when it is back")]
    Stopping,
}

/// What is known of a program when it is let in.
#[derive(Debug, Clone, Default)]
pub(crate) struct Program {
    pub(crate) name: String,
    pub(crate) pid: u32,
    pub(crate) program: String,
    pub(crate) peer: String,
    pub(crate) link: &'static str,
}

/// All sessions, and those that wait for their worker.
#[derive(Debug)]
pub(crate) struct Sessions {
    most: usize,
    inner: Mutex<Inner>,
    /// A session is over, or the server stops.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Inner {
    last: SessionId,
    table: BTreeMap<SessionId, SessionView>,
    /// By which key a session can be taken up, and by whom it is served.
    served: BTreeMap<SessionId, (SessionKey, Mind)>,
    /// Whose program is gone, and whose worker is about to end.
    ending: BTreeSet<SessionId>,
    stopping: bool,
}

impl Inner {
    fn is_ending_with_much(&self, id: SessionId) -> bool {
        let held = || self.table.get(&id)?.device_memory;
        self.ending.contains(&id) && held().is_some_and(|held| held >= MUCH)
    }
}

impl Sessions {
    pub(crate) fn new(most: usize) -> Self {
        Self { most, inner: Mutex::default(), changed: Condvar::new() }
    }

    /// The process of each session's worker, and the bytes of device memory that it last told of.
    pub(crate) fn held(&self) -> Vec<(u32, u64)> {
        let inner = self.lock();
        let served = inner.table.values().filter(|session| session.worker_pid != 0);
        served.map(|session| (session.worker_pid, session.device_memory.unwrap_or(0))).collect()
    }

    /// Sessions allowed at a time.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// Takes a place in the table, before a worker is sought: its worker is 0 until [`Sessions::serve`]. Waits a little for
    /// sessions that are about to end.
    pub(crate) fn admit(&self, program: Program) -> Result<SessionId, AdmissionError> {
        let mut inner = self.wait_for_ends();
        if inner.stopping {
            return Err(AdmissionError::Stopping);
        }
        if inner.table.len() >= self.most {
            return Err(AdmissionError::Full { most: self.most });
        }
        inner.last += 1;
        let id = inner.last;
        inner.table.insert(id, view(id, program));
        Ok(id)
    }

    /// Natively a process has ended when its memory is there again: who begins after it finds it. Here a program may begin
    /// while the worker of one before it ends, and waits as long as that holds much, or has the last place.
    fn wait_for_ends(&self) -> MutexGuard<'_, Inner> {
        let inner = self.lock();
        let before = inner.ending.clone();
        let is_held_up = |inner: &mut Inner| {
            let wants_place = inner.table.len() >= self.most && !inner.ending.is_empty();
            !inner.stopping && (wants_place || before.iter().any(|id| inner.is_ending_with_much(*id)))
        };
        let waited = self.changed.wait_timeout_while(inner, END_PATIENCE, is_held_up);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Notes which worker serves the session.
    pub(crate) fn serve(&self, id: SessionId, worker_pid: u32) {
        self.change(id, |session| session.worker_pid = worker_pid);
    }

    /// The session can be taken up from now on by whoever has its key.
    pub(crate) fn open(&self, id: SessionId, key: SessionKey, worker: Mind) {
        let mut inner = self.lock();
        if inner.table.contains_key(&id) {
            inner.served.insert(id, (key, worker));
        }
    }

    /// Another program than before has the session.
    pub(crate) fn describe(&self, id: SessionId, program: Program) {
        self.change(id, |session| {
            let known = std::mem::replace(session, view(id, program));
            session.started = known.started;
            session.worker_pid = known.worker_pid;
            (session.device_memory, session.calls) = (known.device_memory, known.calls);
        });
    }

    /// Who serves the session with this key. Every key is looked at, whether or not one before it matched.
    pub(crate) fn find(&self, key: &SessionKey) -> Option<(SessionId, Mind)> {
        let inner = self.lock();
        let matching = inner.served.iter().filter(|(_, (known, _))| known.matches(key) && !key.is_none());
        matching.fold(None, |_, (id, (_, worker))| Some((*id, worker.clone())))
    }

    /// Notes what the session uses.
    pub(crate) fn usage(&self, id: SessionId, device_memory: u64, calls: u64) {
        self.change(id, |session| {
            session.device_memory = Some(device_memory);
            session.calls = Some(calls);
        });
    }

    /// Nobody uses the session any more, and its worker is about to end.
    pub(crate) fn is_ending(&self, id: SessionId) {
        let mut inner = self.lock();
        if inner.table.contains_key(&id) {
            inner.ending.insert(id);
        }
    }

    /// Frees the place; says what was there.
    pub(crate) fn end(&self, id: SessionId) -> Option<SessionView> {
        let mut inner = self.lock();
        self.changed.notify_all();
        inner.ending.remove(&id);
        inner.served.remove(&id);
        inner.table.remove(&id)
    }

    /// Lets nobody in any more.
    pub(crate) fn stop(&self) {
        self.lock().stopping = true;
        self.changed.notify_all();
    }

    /// All sessions that have a worker, oldest first.
    pub(crate) fn list(&self) -> Vec<SessionView> {
        self.lock().table.values().filter(|session| session.worker_pid != 0).cloned().collect()
    }

    fn change(&self, id: SessionId, change: impl FnOnce(&mut SessionView)) {
        if let Some(session) = self.lock().table.get_mut(&id) {
            change(session);
        }
    }

    /// No invariant spans two fields, so the table of a thread that panicked is as good as any.
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
        device_memory: None,
        calls: None,
    }
}

/// A key that nobody can guess.
///
/// # Errors
///
/// The system gives no random bytes.
pub(crate) fn new_key() -> io::Result<SessionKey> {
    let mut key = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut key)?;
    Ok(SessionKey(key))
}

/// Seconds since 1970; 0 on a machine whose clock is before.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_table_refuses_until_a_session_ends() {
        let sessions = Sessions::new(1);
        let first = sessions.admit(Program::default()).unwrap();
        assert_eq!(sessions.admit(Program::default()), Err(AdmissionError::Full { most: 1 }));
        sessions.end(first).unwrap();
        assert_eq!(sessions.admit(Program::default()), Ok(2));
    }

    #[test]
    fn a_stopping_server_lets_nobody_in() {
        let sessions = Sessions::new(1);
        sessions.stop();
        assert_eq!(sessions.admit(Program::default()), Err(AdmissionError::Stopping));
    }

    /// Admits a program while the first session, which held so much, is about to end; it is over when this is called.
    fn admit_after(most: usize, held: u64, over: impl Fn(&Sessions) + Sync) -> Result<SessionId, AdmissionError> {
        let sessions = Sessions::new(most);
        let first = sessions.admit(Program::default()).unwrap();
        sessions.usage(first, held, 1);
        sessions.is_ending(first);
        std::thread::scope(|scope| {
            let next = scope.spawn(|| sessions.admit(Program::default()));
            over(&sessions);
            next.join().unwrap()
        })
    }

    #[test]
    fn a_program_waits_for_a_worker_that_ends_with_much_or_has_the_last_place() {
        for (most, held) in [(8, MUCH), (1, 0)] {
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
        assert_eq!(admit_after(8, MUCH - 1, |_| {}), Ok(2));
        assert_eq!(admit_after(8, MUCH, Sessions::stop), Err(AdmissionError::Stopping));
        assert!(began.elapsed() < END_PATIENCE);
        assert_eq!(admit_after(8, MUCH, |_| {}), Ok(2));
    }

    #[test]
    fn no_two_keys_are_the_same_and_none_is_nothing() {
        let (one, other) = (new_key().unwrap(), new_key().unwrap());
        assert!(!one.matches(&other) && !one.is_none());
        assert!(Sessions::new(1).find(&SessionKey::NONE).is_none());
    }

    #[test]
    fn only_sessions_with_a_worker_are_listed() {
        let sessions = Sessions::new(8);
        let waiting = sessions.admit(Program::default()).unwrap();
        let served = sessions.admit(Program::default()).unwrap();
        sessions.serve(served, 42);
        sessions.usage(served, 4096, 7);
        let list = sessions.list();
        assert_eq!(list.len(), 1);
        assert_eq!((list[0].worker_pid, list[0].device_memory, list[0].calls), (42, Some(4096), Some(7)));
        assert_eq!(sessions.end(waiting).unwrap().worker_pid, 0);
    }
}

//! The table of sessions: who is served by which worker.
//!
//! It lives in memory only. A server that restarts begins an empty one, because its workers died with it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use katydid_wire::key::SessionKey;

use crate::minder::Mind;
use crate::view::SessionView;

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
}

#[derive(Debug, Default)]
struct Inner {
    last: SessionId,
    table: BTreeMap<SessionId, SessionView>,
    /// By which key a session can be taken up, and by whom it is served.
    served: BTreeMap<SessionId, (SessionKey, Mind)>,
    stopping: bool,
}

impl Sessions {
    pub(crate) fn new(most: usize) -> Self {
        Self { most, inner: Mutex::default() }
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

    /// Takes a place in the table, before a worker is sought: its worker is 0 until [`Sessions::serve`].
    pub(crate) fn admit(&self, program: Program) -> Result<SessionId, AdmissionError> {
        let mut inner = self.lock();
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

    /// Frees the place; says what was there.
    pub(crate) fn end(&self, id: SessionId) -> Option<SessionView> {
        let mut inner = self.lock();
        inner.served.remove(&id);
        inner.table.remove(&id)
    }

    /// Lets nobody in any more.
    pub(crate) fn stop(&self) {
        self.lock().stopping = true;
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

//! The members of a job: programs with a GPU side, which say hello at the job socket and take orders.
//!
//! One thread accepts connections, and another one reads each. The rule: the state of a member changes only under one lock. A
//! thread that waits for an answer waits on that too, until the answer comes, the member is gone, or the time is up. A member
//! that left its worker stays in the list without a connection. A member whose connection ends otherwise is removed.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use katydid_scratch::private;
use katydid_wire::envelope::{self, EnvelopeError, HEAD_BYTES};
use katydid_wire::handshake::SessionKind;
use katydid_wire::job::{FromProgram, HIDDEN_EXTENSION, JOB_PROTOCOL_VERSION, MAX_JOB_MESSAGE_BYTES, ToProgram};
use katydid_wire::key::SessionKey;
use rustix::net::sockopt::socket_peercred;
use serde::{Deserialize, Serialize};

use crate::process::tree;
use crate::supervisor::member_error::MemberError;
use crate::supervisor::question::{Answerer, Question};

/// Most programs in one job.
const MAX_MEMBERS: usize = 4096;
/// Most silent processes that a message names.
const MAX_NAMED_PEERS: usize = 8;
/// Most connections whose peers have not sent their hello.
const MAX_UNKNOWN_MEMBERS: usize = 1024;
/// How long a program may take to say hello: it connects here first, and then to its server.
const MEMBER_HELLO_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a peer that has its answer may take to close the connection.
const MEMBER_CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// Interval between checks whether an awaited process has ended.
const SILENCE_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// State of a member, which decides what orders it takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemberState {
    /// Connected to its worker.
    Present,
    /// The program has left its worker, and its connection has ended or will.
    Away,
    /// The program has come back after a restore and waits for `Resume`.
    Back,
    /// The program lost its worker and waits for `Resume` or `GiveUp`.
    WorkerLost,
}

/// A program with a GPU side.
#[derive(Debug, Clone)]
pub struct Member {
    /// Number of the program at this supervisor.
    pub id: u64,
    /// Process id of the program, as it sees itself.
    pub pid: u32,
    /// API of its session: a process may be a member twice.
    pub session: SessionKind,
    /// Key of its session.
    pub key: SessionKey,
    /// The server of its session.
    pub address: String,
    /// Link of the session: 1 shared memory, 2 stream.
    pub link: u32,
    /// File name of the program.
    pub program: String,
    /// State of the member.
    pub state: MemberState,
    /// Number of frames that the program had sent at its last report.
    pub frames: u64,
    /// The frame at which the program holds itself by order.
    pub reached: Option<u64>,
}

/// An event that a member reports unasked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberEvent {
    /// The program holds itself at the frame of its stop order.
    Reached {
        /// Number of the member.
        id: u64,
    },
    /// The program's worker has ended.
    Lost {
        /// Number of the member.
        id: u64,
    },
}

/// All members of a job.
#[derive(Debug, Clone)]
pub struct Members(Arc<MemberTable>);

#[derive(Debug)]
struct MemberTable {
    path: PathBuf,
    state: Mutex<MembersState>,
    /// Notified at every change.
    changed: Condvar,
    events: Mutex<Sender<MemberEvent>>,
    /// Unset before the job is open.
    answerer: OnceLock<Answerer>,
}

#[derive(Debug, Default)]
struct MembersState {
    next: u64,
    entries: Vec<MemberEntry>,
    /// Connections whose peers have not sent their hello, with the peers' process ids in this process's namespace.
    unknown_peers: BTreeMap<u64, u32>,
    /// Questions that are being answered.
    pending_questions: usize,
    /// Whether the program has ended.
    is_closed: bool,
    /// Number of members that ever joined with a session of their own: it tells whether one joined between two moments.
    arrivals: u64,
    /// Pending orders by member, with their answers: a member may answer and end before the answer is read.
    answers: HashMap<u64, Option<FromProgram>>,
}

/// A member and its connection.
#[derive(Debug)]
struct MemberEntry {
    member: Member,
    stream: Option<Arc<UnixStream>>,
    /// Number of the connection: the end of an older one does not count.
    connection: u64,
    /// Held by the thread that sends an order and waits for the answer, so that there is one order at a time.
    order_lock: Arc<Mutex<()>>,
    /// Whether it owes the answer to an order, and gets no more orders over this connection.
    is_owing: bool,
}

impl Members {
    /// Starts to accept members at `path`, for as long as the process lives.
    ///
    /// # Errors
    ///
    /// The socket cannot be made.
    pub fn listen(path: &Path, events: Sender<MemberEvent>) -> io::Result<Self> {
        let listener = UnixListener::bind(path)?;
        private::close(path)?;
        let shared = MemberTable {
            path: path.to_owned(),
            state: Mutex::new(MembersState::default()),
            changed: Condvar::new(),
            events: Mutex::new(events),
            answerer: OnceLock::new(),
        };
        let members = Self(Arc::new(shared));
        let acceptor = members.clone();
        thread::Builder::new().name("job".into()).spawn(move || acceptor.accept(&listener))?;
        Ok(members)
    }

    /// Sets the answerer of questions about the job's processes.
    pub(crate) fn answer_with(&self, answerer: Answerer) {
        // A job is opened once, so it is unset.
        let _ = self.0.answerer.set(answerer);
    }

    /// Hides the socket until the returned value is dropped: no process connects meanwhile, so that a dump finds no connection to
    /// the supervisor in a program.
    ///
    /// # Errors
    ///
    /// The socket cannot be renamed.
    pub fn hide(&self) -> io::Result<HiddenSocket> {
        let path = self.0.path.clone();
        fs::rename(&path, out_of_sight(&path)).map(|()| HiddenSocket(path))
    }

    /// Waits until every connected peer has sent its hello, or has gone away. After that, while the socket is hidden, no program
    /// has a connection that is not known.
    ///
    /// # Errors
    ///
    /// A peer sends no hello, or the socket cannot be reached.
    pub fn wait_for_hellos(&self) -> io::Result<()> {
        let path = [self.0.path.clone(), out_of_sight(&self.0.path)].into_iter().find(|path| path.exists());
        // Connections are accepted in order: once this one has been closed, those before it are counted.
        let probe = UnixStream::connect(path.ok_or(io::ErrorKind::NotFound)?)?;
        probe.shutdown(Shutdown::Write)?;
        // The supervisor sends nothing on it, so this waits for its end.
        let _ = (&probe).read(&mut [0])?;
        let deadline = Instant::now() + MEMBER_HELLO_TIMEOUT;
        let mut state = self.lock();
        while !state.unknown_peers.is_empty() && !state.is_closed {
            let left = deadline.checked_duration_since(Instant::now()).ok_or_else(|| silent(&state.unknown_peers))?;
            state = self.0.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }

    /// Waits until the connection of a member that left has ended.
    ///
    /// # Errors
    ///
    /// The connection has not ended in time.
    pub fn wait_silent(&self, id: u64, timeout: Duration) -> Result<(), MemberError> {
        match self.wait_for(id, timeout, |entry| entry.stream.is_none().then_some(())) {
            Err(MemberError::Silent { program, pid, timeout }) => Err(MemberError::Lingers { program, pid, timeout }),
            other => other,
        }
    }

    /// All members, in the order in which they joined.
    #[must_use]
    pub fn list(&self) -> Vec<Member> {
        self.lock().entries.iter().map(|entry| entry.member.clone()).collect()
    }

    /// Number of members that have ever joined. While it stays the same, no member has joined.
    #[must_use]
    pub fn arrivals(&self) -> u64 {
        self.lock().arrivals
    }

    /// Sends an order and waits for its answer. If none comes, the supervisor closes its side of the connection. A program that
    /// comes to the order later carries it out, finds no supervisor, goes on, and connects again.
    ///
    /// # Errors
    ///
    /// See [`MemberError`]; after `Refused` the member is as it was before.
    pub fn order(&self, id: u64, order: &ToProgram, timeout: Duration) -> Result<FromProgram, MemberError> {
        let order_lock =
            self.lock().entries.iter().find(|entry| entry.member.id == id).map(|entry| Arc::clone(&entry.order_lock));
        let order_lock = order_lock.ok_or_else(|| self.member_gone(id))?;
        let _held = order_lock.lock().unwrap_or_else(PoisonError::into_inner);
        if self.lock().entries.iter().any(|entry| entry.member.id == id && entry.is_owing) {
            let (program, pid) = self.named(id);
            return Err(MemberError::Silent { program, pid, timeout });
        }
        self.lock().answers.insert(id, None);
        let answer = self.send(id, order).and_then(|()| self.answer(id, timeout));
        self.lock().answers.remove(&id);
        if matches!(answer, Err(MemberError::Silent { .. })) {
            self.end_orders(id);
        }
        match answer? {
            FromProgram::Failed { text } => Err(self.refused(id, text)),
            answer => Ok(answer),
        }
    }

    /// Ends the sending side of a member's connection, and goes on reading: the member stays one until it closes the connection.
    fn end_orders(&self, id: u64) {
        let mut state = self.lock();
        let Some(entry) = state.entries.iter_mut().find(|entry| entry.member.id == id) else { return };
        entry.is_owing = true;
        if let Some(stream) = &entry.stream {
            // A connection that has ended meanwhile needs no shutdown.
            let _ = stream.shutdown(Shutdown::Write);
        }
    }

    /// Sends an order that has no answer.
    ///
    /// # Errors
    ///
    /// The member is gone.
    pub fn send(&self, id: u64, order: &ToProgram) -> Result<(), MemberError> {
        let bytes = order.encode().map_err(|error| self.refused(id, error.to_string()))?;
        let stream =
            self.lock().entries.iter().find(|entry| entry.member.id == id).and_then(|entry| entry.stream.clone());
        let sent = stream.ok_or(io::ErrorKind::NotConnected.into()).and_then(|stream| (&*stream).write_all(&bytes));
        sent.map_err(|_| self.member_gone(id))
    }

    /// Notes that the member leaves its worker: the end of its connection is expected. A member that has lost its worker keeps
    /// its state.
    pub fn set_away(&self, id: u64) {
        self.pass(id, MemberState::Present, MemberState::Away);
    }

    /// Drops a member that will not come back.
    pub fn forget(&self, id: u64) {
        self.lock().entries.retain(|entry| entry.member.id != id);
        self.0.changed.notify_all();
    }

    /// Called when the program has ended: ends all waits for members.
    pub fn close(&self) {
        self.lock().is_closed = true;
        self.0.changed.notify_all();
    }

    /// Waits until every question that was heard has its answer: the program may end by what its asker is about to be told.
    pub(crate) fn wait_for_answers(&self) {
        let has_some = |state: &mut MembersState| state.pending_questions > 0;
        drop(self.0.changed.wait_while(self.lock(), has_some).unwrap_or_else(PoisonError::into_inner));
    }

    /// Notes the new address and key of a member that has resumed its session. The state stays: the member may have lost the
    /// worker again.
    pub fn set_home(&self, id: u64, address: &str, key: SessionKey) {
        self.change(id, |member| {
            member.address = address.to_owned();
            member.key = key;
        });
        self.forget_silent(id);
    }

    /// Notes that a member that was to leave has stayed, unless it has lost its worker meanwhile.
    pub fn set_present(&self, id: u64) {
        self.pass(id, MemberState::Away, MemberState::Present);
        self.forget_silent(id);
    }

    /// Changes the state of a member from `from` to `to`, if it is `from`.
    fn pass(&self, id: u64, from: MemberState, to: MemberState) {
        self.change(id, |member| {
            if member.state == from {
                member.state = to;
            }
        });
    }

    /// Removes the member if its connection has ended while that was expected.
    fn forget_silent(&self, id: u64) {
        self.lock().entries.retain(|entry| entry.member.id != id || entry.stream.is_some());
    }

    /// Waits until the member waits for a worker. `is_over` says that it has ended while it was away.
    ///
    /// # Errors
    ///
    /// The member is gone, or the time is up.
    pub fn wait_back(&self, id: u64, timeout: Duration, is_over: &dyn Fn() -> bool) -> Result<(), MemberError> {
        let deadline = Instant::now() + timeout;
        loop {
            let remaining = deadline.saturating_duration_since(Instant::now());
            let is_back = |entry: &MemberEntry| {
                matches!(entry.member.state, MemberState::Back | MemberState::WorkerLost).then_some(())
            };
            match self.wait_for(id, remaining.min(SILENCE_POLL_INTERVAL), is_back) {
                Err(MemberError::Silent { program, pid, .. }) if is_over() => {
                    return Err(MemberError::Gone { program, pid });
                }
                Err(MemberError::Silent { program, pid, .. }) if remaining <= SILENCE_POLL_INTERVAL => {
                    return Err(MemberError::Silent { program, pid, timeout });
                }
                Err(MemberError::Silent { .. }) => {}
                other => return other,
            }
        }
    }

    /// Waits until the member with this process id and kind of session is back. Returns `None` if `is_over` first.
    ///
    /// # Errors
    ///
    /// It did not come in time.
    pub fn wait_pid(
        &self,
        (pid, session): (u32, SessionKind),
        timeout: Duration,
        is_over: &dyn Fn() -> bool,
    ) -> Result<Option<Member>, MemberError> {
        let is_it = |member: &Member| (member.pid, member.session) == (pid, session);
        let waits = |entry: &&MemberEntry| is_it(&entry.member) && entry.member.state == MemberState::Back;
        let deadline = Instant::now() + timeout;
        let mut state = self.lock();
        loop {
            if let Some(entry) = state.entries.iter().find(waits) {
                return Ok(Some(entry.member.clone()));
            }
            if is_over() {
                return Ok(None);
            }
            let Some(remaining) = deadline.checked_duration_since(Instant::now()) else {
                return Err(MemberError::Silent { program: "a restored program".to_owned(), pid, timeout });
            };
            state = self
                .0
                .changed
                .wait_timeout(state, remaining.min(SILENCE_POLL_INTERVAL))
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    /// Waits for the answer to the member's order.
    fn answer(&self, id: u64, timeout: Duration) -> Result<FromProgram, MemberError> {
        self.wait(id, timeout, |state| state.answers.get_mut(&id).and_then(Option::take))
    }

    /// Waits until `find` returns a value for a member.
    fn wait_for<T>(
        &self,
        id: u64,
        timeout: Duration,
        find: impl Fn(&MemberEntry) -> Option<T>,
    ) -> Result<T, MemberError> {
        self.wait(id, timeout, |state| state.entries.iter().find(|entry| entry.member.id == id).and_then(&find))
    }

    /// Waits until `find` returns a value, as long as the member is there. Once the job's program has ended, a connected member
    /// is read to the end of its connection, since its last message may not have been read yet. Other members are not awaited.
    fn wait<T>(
        &self,
        id: u64,
        timeout: Duration,
        mut find: impl FnMut(&mut MembersState) -> Option<T>,
    ) -> Result<T, MemberError> {
        let deadline = Instant::now() + timeout;
        // Read first, since the member may be gone when the error names it.
        let (program, pid) = self.named(id);
        let mut state = self.lock();
        loop {
            if let Some(found) = find(&mut state) {
                return Ok(found);
            }
            let entry = state.entries.iter().find(|entry| entry.member.id == id);
            if !entry.is_some_and(|entry| entry.stream.is_some() || !state.is_closed) {
                return Err(MemberError::Gone { program, pid });
            }
            let Some(left) = deadline.checked_duration_since(Instant::now()) else {
                return Err(MemberError::Silent { program, pid, timeout });
            };
            state = self.0.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn accept(&self, listener: &UnixListener) {
        for stream in listener.incoming() {
            let Ok(stream) = stream else {
                // All descriptors are in use, or the connection is gone again.
                thread::sleep(SILENCE_POLL_INTERVAL);
                continue;
            };
            // A peer that is turned away tries again.
            let Some(peer) = UnknownPeer::new(self, &stream) else { continue };
            // If no thread starts, the connection is dropped, and the program tries again.
            let _ = thread::Builder::new().name("member".into()).spawn(move || serve_peer(peer, &Arc::new(stream)));
        }
    }

    /// Makes an entry for a new member, or finds the entry of one that comes back.
    fn entry(&self, member: Member, stream: &Arc<UnixStream>) -> Option<(u64, u64)> {
        let mut state = self.lock();
        state.next += 1;
        let connection = state.next;
        let position = state.entries.iter().position(|entry| {
            entry.member.state == MemberState::Away
                && entry.member.pid == member.pid
                && entry.member.key.matches(&member.key)
        });
        if position.is_none() && state.entries.len() >= MAX_MEMBERS {
            return None;
        }
        let id = position.map_or(connection, |at| state.entries[at].member.id);
        let order_lock = position.map_or_else(Arc::default, |at| Arc::clone(&state.entries[at].order_lock));
        let entry = MemberEntry {
            member: Member { id, ..member },
            stream: Some(stream.clone()),
            connection,
            order_lock,
            is_owing: false,
        };
        match position {
            Some(at) => state.entries[at] = entry,
            None => {
                state.arrivals += 1;
                state.entries.push(entry);
            }
        }
        self.0.changed.notify_all();
        Some((id, connection))
    }

    /// Handles a message.
    fn handle_message(&self, id: u64, connection: u64, message: FromProgram) {
        let mut state = self.lock();
        let Some(entry) = state.entries.iter_mut().find(|entry| entry.connection == connection) else { return };
        let event = match &message {
            FromProgram::Reached { frames } => {
                entry.member.frames = *frames;
                entry.member.reached = Some(*frames);
                Some(MemberEvent::Reached { id })
            }
            FromProgram::Lost { frames } => {
                entry.member.frames = *frames;
                entry.member.state = MemberState::WorkerLost;
                Some(MemberEvent::Lost { id })
            }
            FromProgram::Held { frames } | FromProgram::Left { frames } => {
                entry.member.frames = *frames;
                None
            }
            FromProgram::Released {} => {
                entry.member.reached = None;
                None
            }
            // From here on the member is with its new worker: the next message may say that it has come to a frame.
            FromProgram::Resumed {} | FromProgram::Rejoined {} => {
                (entry.member.state, entry.member.reached) = (MemberState::Present, None);
                None
            }
            _ => None,
        };
        if event.is_none()
            && let Some(answer) = state.answers.get_mut(&id)
        {
            *answer = Some(message);
        }
        self.0.changed.notify_all();
        drop(state);
        if let Some(event) = event {
            // No thread listens once the job ends.
            let _ = self.0.events.lock().unwrap_or_else(PoisonError::into_inner).send(event);
        }
    }

    /// Handles the end of a connection.
    fn leave(&self, id: u64, connection: u64) {
        let mut state = self.lock();
        state.entries.retain_mut(|entry| {
            if entry.member.id != id || entry.connection != connection {
                return true;
            }
            entry.stream = None;
            entry.member.state == MemberState::Away
        });
        self.0.changed.notify_all();
    }

    fn change(&self, id: u64, change: impl FnOnce(&mut Member)) {
        let mut state = self.lock();
        if let Some(entry) = state.entries.iter_mut().find(|entry| entry.member.id == id) {
            change(&mut entry.member);
        }
        self.0.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, MembersState> {
        // No thread leaves the state half changed, so it is intact even if a thread panicked under the lock.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn named(&self, id: u64) -> (String, u32) {
        let state = self.lock();
        let entry = state.entries.iter().find(|entry| entry.member.id == id);
        entry.map_or_else(|| ("a program".to_owned(), 0), |entry| (entry.member.program.clone(), entry.member.pid))
    }

    fn member_gone(&self, id: u64) -> MemberError {
        let (program, pid) = self.named(id);
        MemberError::Gone { program, pid }
    }

    fn refused(&self, id: u64, reason: String) -> MemberError {
        let (program, pid) = self.named(id);
        MemberError::Refused { program, pid, reason }
    }
}

/// A connection whose peer has not sent its hello. It counts as such as long as this value lives.
struct UnknownPeer(Members, u64);

/// The error for peers that connected and sent no hello.
fn silent(unknown_peers: &BTreeMap<u64, u32>) -> io::Error {
    // One process may have many connections.
    let pids: BTreeSet<u32> = unknown_peers.values().copied().collect();
    let named = pids.iter().take(MAX_NAMED_PEERS).map(|pid| format!("process {pid} ({})", tree::name(*pid)));
    let named: Vec<String> = named.collect();
    let more = match pids.len().saturating_sub(MAX_NAMED_PEERS) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let seconds = MEMBER_HELLO_TIMEOUT.as_secs();
    let text = format!("nothing was heard for {seconds} s of {}{more}", named.join(", "));
    io::Error::new(io::ErrorKind::TimedOut, text)
}

impl UnknownPeer {
    /// Counts a connection; `None` if the limit of such connections is reached.
    fn new(members: &Members, stream: &UnixStream) -> Option<Self> {
        // A peer whose process id is unknown counts too.
        let pid = socket_peercred(stream).map_or(0, |peer| peer.pid.as_raw_nonzero().get().unsigned_abs());
        let mut state = members.lock();
        if state.unknown_peers.len() >= MAX_UNKNOWN_MEMBERS {
            return None;
        }
        state.next += 1;
        let number = state.next;
        state.unknown_peers.insert(number, pid);
        Some(Self(members.clone(), number))
    }

    /// Waits for the hello, which says who the peer is. Returns the numbers of the member and of the connection. A peer that only
    /// asks a question gets its answer, and is no member.
    fn receive_hello(self, stream: &Arc<UnixStream>) -> Option<(Members, u64, u64)> {
        stream.set_read_timeout(Some(MEMBER_HELLO_TIMEOUT)).ok()?;
        let message = read(stream).ok()??;
        if let FromProgram::Ask { protocol: JOB_PROTOCOL_VERSION, process, what, timeout_ms, gpus } = message {
            let timeout = Duration::from_millis(timeout_ms.into());
            self.answer(stream, &Question { process, what, timeout, gpus });
            return None;
        }
        let FromProgram::Member {
            protocol: JOB_PROTOCOL_VERSION,
            session,
            pid,
            key,
            address,
            link,
            state,
            frames,
            program,
        } = message
        else {
            return None;
        };
        let state = match state {
            0 => MemberState::Present,
            1 => MemberState::Back,
            _ => MemberState::WorkerLost,
        };
        stream.set_read_timeout(None).ok()?;
        // Bounds writes, since a program may read nothing.
        stream.set_write_timeout(Some(MEMBER_HELLO_TIMEOUT)).ok()?;
        let session = SessionKind(session);
        let member = Member { id: 0, pid, session, key, address, link, program, state, frames, reached: None };
        let (id, connection) = self.0.entry(member, stream)?;
        Some((self.0.clone(), id, connection))
    }

    /// Answers a question, and waits until the peer has closed the connection: it may be a program of the job, which cannot be
    /// dumped before.
    fn answer(&self, mut stream: &UnixStream, question: &Question) {
        if self.send_answer(stream, question).is_ok() {
            // The peer sends nothing more, so this waits for the end.
            let _ = stream.set_read_timeout(Some(MEMBER_CLOSE_TIMEOUT)).and_then(|()| stream.read(&mut [0]));
        }
    }

    fn send_answer(&self, mut stream: &UnixStream, question: &Question) -> io::Result<()> {
        let _pending = PendingQuestion::new(&self.0);
        let answerer = self.0.0.answerer.get().ok_or(io::ErrorKind::NotConnected)?;
        let bytes = (answerer.0)(question).encode().map_err(io::Error::other)?;
        // A peer that reads nothing does not keep the job from ending.
        stream.set_write_timeout(Some(MEMBER_HELLO_TIMEOUT))?;
        stream.write_all(&bytes)
    }
}

/// A question that is being answered, as long as the value lives.
struct PendingQuestion<'a>(&'a Members);

impl<'a> PendingQuestion<'a> {
    fn new(members: &'a Members) -> Self {
        members.lock().pending_questions += 1;
        Self(members)
    }
}

impl Drop for PendingQuestion<'_> {
    fn drop(&mut self) {
        self.0.lock().pending_questions -= 1;
        self.0.0.changed.notify_all();
    }
}

impl Drop for UnknownPeer {
    fn drop(&mut self) {
        self.0.lock().unknown_peers.remove(&self.1);
        self.0.0.changed.notify_all();
    }
}

/// Reads a connection to its end.
fn serve_peer(peer: UnknownPeer, stream: &Arc<UnixStream>) {
    let Some((members, id, connection)) = peer.receive_hello(stream) else { return };
    while let Ok(Some(message)) = read(stream) {
        members.handle_message(id, connection, message);
    }
    members.leave(id, connection);
}

/// A job socket that is hidden from all processes.
#[derive(Debug)]
pub struct HiddenSocket(PathBuf);

impl Drop for HiddenSocket {
    fn drop(&mut self) {
        // Only this user can enter the folder; if it is gone, so is the job.
        let _ = fs::rename(out_of_sight(&self.0), &self.0);
    }
}

/// Path of a hidden socket.
pub(crate) fn out_of_sight(path: &Path) -> PathBuf {
    path.with_extension(HIDDEN_EXTENSION)
}

/// Reads one message; `None` at the end of the connection.
fn read(mut stream: &UnixStream) -> io::Result<Option<FromProgram>> {
    let breach = |error: EnvelopeError| io::Error::new(io::ErrorKind::InvalidData, error);
    let mut head = [0; HEAD_BYTES];
    match stream.read_exact(&mut head) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let length = envelope::length(&head, MAX_JOB_MESSAGE_BYTES).map_err(breach)?;
    let mut message = head.to_vec();
    message.resize(length, 0);
    stream.read_exact(&mut message[HEAD_BYTES..])?;
    FromProgram::decode(&message).map(Some).map_err(breach)
}

#[cfg(test)]
mod tests;

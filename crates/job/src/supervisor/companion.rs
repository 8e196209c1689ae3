//! The supervisor's end of a companion connection: it sends orders to the worker of one session, and answers the worker's
//! questions about the image.
//!
//! The rule: an order is answered once. Progress, questions about the image and the end of a snapshot may come before the answer,
//! and are handled while waiting for it. A worker is not trusted: names that it sends are looked up, and its data is bounded.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use katydid_image::{CheckpointNumber, CheckpointReader, ChunkId, FileEntry, ImageSource, Session, Sink, Writer};
use katydid_transport::{Address, ConnectError, ControlChannel, ControlError, LinkError, companion, driver_at};
use katydid_wire::codec::CodecError;
use katydid_wire::companion::{
    FromWorker, HASH_BYTES, MAX_REQUEST_HASHES, MAX_STATE_PIECE_BYTES, MovedVariable, Store, ToWorker,
};
use katydid_wire::envelope::EnvelopeError;
use katydid_wire::handshake::{HandshakeError, Ready, RefusalCode};
use katydid_wire::key::SessionKey;
use katydid_wire::sharing::Sharing;

use crate::process::memory::saved_pointers;
use crate::process::memory::saved_pointers::Pointer;
use crate::supervisor::generations::Generations;

/// How long a server may take to hand a connection to a worker; a cold driver takes seconds to start.
const COMPANION_CONNECT_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a server may take to answer a greeting, before the programs of a job are held for it.
pub(crate) const GREETING_TIMEOUT: Duration = Duration::from_secs(20);
/// How long a worker may be silent while it writes or reads an image; it reports progress far more often.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(600);
/// How long a worker may take to let go of a companion that leaves.
const COMPANION_CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval between checks whether a resuming program has failed to come.
const QUESTION_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Most workers that are asked, one after the other, to rebuild a session if addresses differ. One of fifty was seen to have
/// such.
const REBUILD_ATTEMPTS: u32 = 4;
/// How long workers that find no memory on a device are asked again, and the bounds of the pause before the next one.
const REBUILD_MEMORY_TIMEOUT: Duration = Duration::from_secs(5);
const MEMORY_PAUSE: [Duration; 2] = [Duration::from_millis(50), Duration::from_millis(500)];
/// Largest state file that is accepted from a worker.
const MAX_SENT_STATE_BYTES: usize = 1 << 30;

/// Progress of a session's snapshot; read by the thread that shows it.
#[derive(Debug, Default)]
pub struct Progress {
    /// Bytes handled so far.
    pub done: AtomicU64,
    /// Bytes of the snapshot in all.
    pub total: AtomicU64,
    /// Bytes added to the image.
    pub written: AtomicU64,
}

/// Source of the answers to a worker's questions.
#[derive(Debug, Clone, Copy)]
pub enum Questions<'a> {
    /// The worker asks nothing at this stage.
    Refused,
    /// A checkpoint being written.
    Write(&'a Writer),
    /// A checkpoint being read.
    Read(&'a Catalogue<'a>),
}

/// A checkpoint, with the lengths of its chunks and the names of its files, which a worker uses in questions.
#[derive(Debug)]
pub struct Catalogue<'a> {
    reader: &'a CheckpointReader,
    lengths: HashMap<ChunkId, usize>,
    files: HashMap<&'a str, &'a FileEntry>,
    /// The manifest's part of each session, by the name that a worker uses.
    parts: HashMap<String, &'a Session>,
}

impl<'a> Catalogue<'a> {
    /// Catalogue of all chunks that `reader` knows.
    #[must_use]
    pub fn new(reader: &'a CheckpointReader) -> Self {
        let lengths = reader.manifest().chunks().map(|(id, length)| (*id, length)).collect();
        let sessions = &reader.manifest().sessions;
        let states = sessions.iter().flat_map(|session| session.states.values());
        let parts = sessions.iter().map(|session| (format!("state-{}.part.bin", session.name), session)).collect();
        Self { reader, lengths, files: states.map(|entry| (entry.name.as_str(), entry)).collect(), parts }
    }

    /// Returns a file of a session, or the manifest's part of one.
    fn file(&self, name: &str) -> Result<Vec<u8>, String> {
        match (self.files.get(name), self.parts.get(name)) {
            (Some(entry), _) => self.reader.state(entry).map_err(|error| error.to_string()),
            (None, Some(part)) => serde_json::to_vec(part).map_err(|error| error.to_string()),
            (None, None) => Err(format!("the checkpoint has no file {name}")),
        }
    }
}

/// Settings for rebuilding sessions.
#[derive(Debug, Clone, Copy)]
pub struct Rebuild<'a> {
    /// The checkpoint to rebuild from.
    pub catalogue: &'a Catalogue<'a>,
    /// The image's folder, if it has one.
    pub directory: Option<BorrowedFd<'a>>,
    /// Whether the program lives on, with its host memory: then every variable must have its old address.
    pub device_only: bool,
    /// Whether this is only a rehearsal: no program will come.
    pub rehearsal: bool,
    /// The folder with the program's saved memory, which is searched for pointers to variables that have moved.
    pub memory: Option<&'a Path>,
    /// The generations of the job to which the sessions will belong.
    pub generations: &'a Generations,
    /// Devices to use in place of the session's own, one a line, as `ToWorker::Restore` has them.
    pub devices: &'a str,
}

/// Why a worker did not carry out an order.
#[derive(Debug, thiserror::Error)]
pub enum CompanionError {
    /// The worker could not be reached.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The connection ended or broke.
    #[error("the worker of {session}: {source}; {}", remedy(source))]
    ControlChannel {
        /// Name of the session.
        session: String,
        /// The failure of the connection.
        source: ControlError,
    },
    /// The worker refused; the text is its own.
    #[error("{session}: {text}")]
    Refused {
        /// Name of the session.
        session: String,
        /// Reason that the worker gave.
        text: String,
    },
    /// The driver chose other addresses than those of the image, in each worker that was asked; or objects made from an outline
    /// differ from the image.
    #[error("{session}: {text}")]
    AddressMismatch {
        /// Name of the session.
        session: String,
        /// The object whose address differs from the image.
        text: String,
    },
    /// The device has too little free memory.
    #[error(
        "{session}: {text}; free memory of that device (`katydid ps` shows what holds it), or name a server that has more"
    )]
    OutOfDeviceMemory {
        /// Name of the session.
        session: String,
        /// The object for which there was no memory.
        text: String,
    },
    /// The program's saved memory cannot be searched.
    #[error("{session}: cannot look for pointers in the program's saved memory: {source}")]
    Memory {
        /// Name of the session.
        session: String,
        /// Error that the system returned.
        source: io::Error,
    },
    /// The driver has its devices in another order. The worker starts itself anew with the right order.
    #[error(
        "{session}: the driver does not have its devices in another order; name a server whose devices are in the order of the image"
    )]
    DeviceOrder {
        /// Name of the session.
        session: String,
    },
    /// The worker sent something that does not belong there.
    #[error("the worker of {session} broke the protocol: {what}")]
    Breach {
        /// Name of the session.
        session: String,
        /// Message or value that does not belong there.
        what: String,
    },
}

impl CompanionError {
    /// Whether the session's worker was about to end, or had ended, because its program ends while the job's others run.
    pub(crate) fn is_of_ended_session(&self) -> bool {
        match self {
            Self::Connect(ConnectError::Link { source: LinkError::Closed, .. })
            | Self::ControlChannel { source: ControlError::Closed, .. } => true,
            Self::Connect(ConnectError::Handshake { source: HandshakeError::Refused(refused), .. }) => {
                refused.code == RefusalCode::NO_SESSION
            }
            _ => false,
        }
    }

    /// Whether the server takes no session now, or cannot be reached, so that the work itself did not fail.
    pub(crate) fn is_of_server(&self) -> bool {
        match self {
            Self::Connect(ConnectError::Handshake { source: HandshakeError::Refused(refused), .. }) => {
                [RefusalCode::BUSY, RefusalCode::CROWDED, RefusalCode::DRIVER].contains(&refused.code)
            }
            Self::Connect(error) => {
                matches!(
                    error,
                    ConnectError::Unreachable { .. } | ConnectError::Deadline { .. } | ConnectError::Tls { .. }
                )
            }
            _ => false,
        }
    }
}

/// What a user can do about a broken connection to a worker.
fn remedy(source: &ControlError) -> &'static str {
    match source {
        ControlError::Deadline(_) => "try again when the machines are less busy",
        ControlError::Envelope(_) => "give the supervisor and the server the same release of Katydid",
        _ => "the server's messages say why it ended; try again",
    }
}

/// A connection to the worker of a session.
#[derive(Debug)]
pub struct Companion {
    channel: ControlChannel,
    /// Name of the session in the image.
    pub session: String,
    /// Whether descriptors can be passed to the worker.
    is_local: bool,
    /// Process of the worker, on its machine.
    pub worker: u32,
    /// Key that names the session at its server.
    pub key: SessionKey,
    /// The end of a snapshot that arrived while another answer was awaited.
    ended: Option<Result<Vec<u8>, String>>,
    /// State files that arrive in pieces.
    pieces: HashMap<String, Vec<u8>>,
    state: StateRead,
    /// Variables that have other addresses in the rebuilt session.
    moved: Vec<MovedVariable>,
}

/// The state file that a worker reads piece by piece, kept so that it is read and checked only once.
#[derive(Debug, Default)]
struct StateRead(Option<(String, Vec<u8>)>);

impl StateRead {
    /// The piece at `offset`.
    fn piece(&mut self, catalogue: &Catalogue<'_>, name: &str, offset: u64) -> Result<ToWorker, String> {
        let bytes = match self.0.take() {
            Some((known, bytes)) if known == name => bytes,
            _ => catalogue.file(name)?,
        };
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
        let to = from.saturating_add(MAX_STATE_PIECE_BYTES).min(bytes.len());
        let piece = ToWorker::State { total: bytes.len() as u64, data: bytes[from..to].to_vec() };
        // No worker asks for more after its end.
        self.0 = (to < bytes.len()).then_some((name.to_owned(), bytes));
        Ok(piece)
    }
}

impl Drop for Companion {
    /// Waits until the worker has let go, since a worker takes one companion at a time: the next one finds it free.
    fn drop(&mut self) {
        self.channel.part(COMPANION_CLOSE_TIMEOUT);
    }
}

/// Greets a server that is to take sessions, while their programs still run.
///
/// # Errors
///
/// [`CompanionError::Connect`]: the server is not there, does not answer in time, or refuses programs.
pub(crate) fn greet(address: &Address, timeout: Duration) -> Result<(), CompanionError> {
    driver_at(address, SessionKey::NONE, timeout)?;
    Ok(())
}

impl Companion {
    /// Connects to the worker of the session `key`, or, without a key, to a warm worker that is to rebuild one.
    ///
    /// # Errors
    ///
    /// [`CompanionError::Connect`].
    pub fn connect(address: &Address, key: SessionKey, session: &str) -> Result<Self, CompanionError> {
        let (channel, ready) = companion(address, key, COMPANION_CONNECT_TIMEOUT)?;
        Ok(Self::over(channel, &ready, address, session))
    }

    pub(crate) fn over(channel: ControlChannel, ready: &Ready, address: &Address, session: &str) -> Self {
        Self {
            channel,
            session: session.to_owned(),
            is_local: matches!(address, Address::Unix(_)),
            worker: ready.worker_pid,
            key: ready.key,
            ended: None,
            pieces: HashMap::new(),
            state: StateRead::default(),
            moved: Vec::new(),
        }
    }

    /// Has the session, which is paused and whose program has left, give up what no image of its worker's process can have. The
    /// session cannot be used until it is refilled.
    ///
    /// # Errors
    ///
    /// The worker's refusal, or a failed connection.
    pub(crate) fn suspend(&mut self) -> Result<(), CompanionError> {
        match self.order(&ToWorker::Suspend {}, None, SILENCE_TIMEOUT, Questions::Refused, None)? {
            FromWorker::Suspended {} => Ok(()),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Has the session take that up again, with contents from the image; `key` is the session's new key. The session is paused,
    /// and waits for its program.
    ///
    /// # Errors
    ///
    /// The worker's refusal, or a failed connection.
    pub(crate) fn refill(
        &mut self,
        catalogue: &Catalogue<'_>,
        directory: Option<BorrowedFd<'_>>,
        key: SessionKey,
        progress: &Progress,
    ) -> Result<(), CompanionError> {
        let directory = directory.filter(|_| self.is_local);
        let CheckpointNumber(checkpoint) = catalogue.reader.number();
        let store = if directory.is_some() { Store::DIRECTORY } else { Store::STREAM };
        let order = ToWorker::Refill { store, session: self.session.clone(), checkpoint, key: key.0.to_vec() };
        match self.order(&order, directory, SILENCE_TIMEOUT, Questions::Read(catalogue), Some(progress))? {
            FromWorker::Refilled {} => Ok(()),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Brings the session to rest, after all of its `frames`.
    ///
    /// # Errors
    ///
    /// [`CompanionError::Refused`]: the session does not come to rest, and goes on.
    pub fn pause(&mut self, frames: u64, timeout: Duration) -> Result<(), CompanionError> {
        let timeout_ms = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
        let order = ToWorker::Pause { frames, timeout_ms };
        // The worker keeps the time limit; the addition is for the transfer.
        match self.order(&order, None, timeout + Duration::from_secs(10), Questions::Refused, None)? {
            FromWorker::Paused { .. } => Ok(()),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Has the worker open the image, while the program runs. `directory` is the image's folder, for workers of this machine.
    ///
    /// # Errors
    ///
    /// The worker's refusal, or a failed connection.
    pub fn prepare(
        &mut self,
        plan: Plan,
        directory: Option<BorrowedFd<'_>>,
        writer: &Writer,
    ) -> Result<(), CompanionError> {
        let directory = directory.filter(|_| self.is_local);
        let order = ToWorker::Prepare {
            store: if directory.is_some() { Store::DIRECTORY } else { Store::STREAM },
            checkpoint: writer.number().0,
            full: u32::from(plan.full),
            level: plan.level,
        };
        match self.order(&order, directory, SILENCE_TIMEOUT, Questions::Write(writer), None)? {
            FromWorker::Prepared {} => Ok(()),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Has the worker copy aside what the image is to hold.
    ///
    /// # Errors
    ///
    /// The worker's refusal, or a failed connection.
    pub fn snapshot(&mut self, plan: Plan, writer: &Writer, progress: &Progress) -> Result<Sharing, CompanionError> {
        let order = ToWorker::Snapshot {
            session: self.session.clone(),
            device_only: u32::from(plan.device_only),
            full: u32::from(plan.full),
            outline: u32::from(plan.outline),
        };
        match self.order(&order, None, SILENCE_TIMEOUT, Questions::Write(writer), Some(progress))? {
            FromWorker::Captured { bytes, sharing, .. } => {
                progress.total.store(bytes, Relaxed);
                let what = |error: CodecError| CompanionError::Breach {
                    session: self.session.clone(),
                    what: error.to_string(),
                };
                Sharing::decode(&sharing).map_err(what)
            }
            other => Err(self.unexpected(&other)),
        }
    }

    /// Detaches the session: it no longer ends with the program's connection.
    ///
    /// # Errors
    ///
    /// The worker's refusal, or a failed connection.
    pub fn detach(&mut self, questions: Questions<'_>, progress: &Progress) -> Result<(), CompanionError> {
        match self.order(&ToWorker::Detach {}, None, SILENCE_TIMEOUT, questions, Some(progress))? {
            FromWorker::Detached {} => Ok(()),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Lets the worker execute frames again.
    ///
    /// # Errors
    ///
    /// The worker's refusal, or a failed connection.
    pub fn proceed(&mut self, questions: Questions<'_>, progress: &Progress) -> Result<(), CompanionError> {
        match self.order(&ToWorker::Resume {}, None, SILENCE_TIMEOUT, questions, Some(progress))? {
            FromWorker::Resumed {} => Ok(()),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Has the worker write its snapshot, and waits for the end of that. Returns the session's part of the manifest, if that did
    /// not go into the image directly.
    ///
    /// # Errors
    ///
    /// The worker's refusal, or a failed connection.
    pub fn write(&mut self, writer: &Writer, progress: &Progress) -> Result<Vec<u8>, CompanionError> {
        self.send(&ToWorker::Write {}, None)?;
        loop {
            if let Some(ended) = self.ended.take() {
                return ended.map_err(|text| CompanionError::Refused { session: self.session.clone(), text });
            }
            let message = self.receive(SILENCE_TIMEOUT)?;
            if let Some(other) = self.handle_between(message, Questions::Write(writer), Some(progress))? {
                return Err(self.unexpected(&other));
            }
        }
    }

    /// Rebuilds a session from the image in one of the server's workers. It then waits for its program, as long as this
    /// connection lasts. If the driver chooses other addresses than the image holds, another worker is asked, since they depend
    /// on the timing of the driver's threads. The same happens if a worker found no memory, after a random pause in which nothing
    /// is held. So two rebuilds in each other's way do not come back at the same time.
    ///
    /// # Errors
    ///
    /// The last worker's refusal; or the program's memory holds a pointer to the old address of a variable.
    pub fn rebuild(
        address: &Address,
        session: &str,
        plan: &Rebuild<'_>,
        progress: &Progress,
    ) -> Result<Self, CompanionError> {
        let (mut attempts_left, began) = (REBUILD_ATTEMPTS, Instant::now());
        loop {
            let mut companion = Self::connect(address, SessionKey::NONE, session)?;
            let mut restored = companion.restore(plan, progress);
            if let Err(CompanionError::DeviceOrder { .. }) = restored {
                let key = companion.key;
                drop(companion);
                companion = Self::connect(address, key, session)?;
                restored = companion.restore(plan, progress);
            }
            match restored.and_then(|()| companion.check_moved(plan)) {
                Err(CompanionError::AddressMismatch { .. }) if attempts_left > 1 => attempts_left -= 1,
                Err(CompanionError::OutOfDeviceMemory { .. }) if began.elapsed() < REBUILD_MEMORY_TIMEOUT => {
                    drop(companion);
                    thread::sleep(pause());
                }
                done => return done.map(|()| companion),
            }
        }
    }

    /// Rebuilds a session in the worker that rebuilt its outline. If the objects of that do not fit, or the worker is gone,
    /// another worker is asked.
    ///
    /// # Errors
    ///
    /// As [`Companion::rebuild`].
    pub fn rebuild_on(
        rehearsed: Option<Self>,
        address: &Address,
        session: &str,
        plan: &Rebuild<'_>,
        progress: &Progress,
    ) -> Result<Self, CompanionError> {
        let Some(mut companion) = rehearsed else { return Self::rebuild(address, session, plan, progress) };
        match companion.restore(plan, progress).and_then(|()| companion.check_moved(plan)) {
            Err(CompanionError::AddressMismatch { .. } | CompanionError::ControlChannel { .. }) => {
                drop(companion);
                Self::rebuild(address, session, plan, progress)
            }
            done => done.map(|()| companion),
        }
    }

    /// Checks that the program's saved memory points to no variable that has moved.
    fn check_moved(&self, plan: &Rebuild<'_>) -> Result<(), CompanionError> {
        let session = || self.session.clone();
        let Some(memory) = plan.memory.filter(|_| !self.moved.is_empty()) else { return Ok(()) };
        let found = saved_pointers::find(memory, &self.moved);
        match found.map_err(|source| CompanionError::Memory { session: session(), source })? {
            None => Ok(()),
            Some(Pointer { file, offset, word, variable }) => {
                let text = format!(
                    "{} lay at {:#x} and lies elsewhere now, and the program's own memory holds {word:#x}, which pointed \
                     there (byte {offset} of {file}): restore with the driver and GPU that the image was made with",
                    variable.name, variable.address
                );
                Err(CompanionError::AddressMismatch { session: session(), text })
            }
        }
    }

    fn restore(&mut self, plan: &Rebuild<'_>, progress: &Progress) -> Result<(), CompanionError> {
        let directory = plan.directory.filter(|_| self.is_local);
        let CheckpointNumber(checkpoint) = plan.catalogue.reader.number();
        let order = ToWorker::Restore {
            store: if directory.is_some() { Store::DIRECTORY } else { Store::STREAM },
            session: self.session.clone(),
            checkpoint,
            device_only: u32::from(plan.device_only),
            generations: plan.generations.encode(),
            devices: plan.devices.to_owned(),
            rehearsal: u32::from(plan.rehearsal),
        };
        match self.order(&order, directory, SILENCE_TIMEOUT, Questions::Read(plan.catalogue), Some(progress))? {
            FromWorker::Restored { moved, .. } => {
                let moved = MovedVariable::decode(&moved);
                let session = || self.session.clone();
                self.moved =
                    moved.map_err(|error| CompanionError::Breach { session: session(), what: error.to_string() })?;
                Ok(())
            }
            other => Err(self.unexpected(&other)),
        }
    }

    /// Answers questions of a rebuilt session's worker while its program comes back: the worker then reads what lies in the
    /// program's memory. Returns when the program is there, or when `is_over`.
    ///
    /// # Errors
    ///
    /// The worker is gone, or broke the protocol.
    pub fn answer_until(
        &mut self,
        catalogue: &Catalogue<'_>,
        is_over: &(dyn Fn() -> bool + Sync),
    ) -> Result<(), CompanionError> {
        while !is_over() {
            let message = match self.channel.receive(QUESTION_POLL_INTERVAL) {
                Err(ControlError::Deadline(_)) => continue,
                other => other.map_err(|error| self.broken(error))?,
            };
            let message =
                FromWorker::decode(&message.bytes).map_err(|error: EnvelopeError| self.broken(error.into()))?;
            if matches!(message, FromWorker::Attached {}) {
                return Ok(());
            }
            if let Some(other) = self.handle_between(message, Questions::Read(catalogue), None)? {
                return Err(self.unexpected(&other));
            }
        }
        Ok(())
    }

    pub(crate) fn order(
        &mut self,
        order: &ToWorker,
        fd: Option<BorrowedFd<'_>>,
        timeout: Duration,
        questions: Questions<'_>,
        progress: Option<&Progress>,
    ) -> Result<FromWorker, CompanionError> {
        self.send(order, fd)?;
        loop {
            let message = self.receive(timeout)?;
            match self.handle_between(message, questions, progress)? {
                None => {}
                Some(FromWorker::Failed { text }) => {
                    return Err(CompanionError::Refused { session: self.session.clone(), text });
                }
                Some(FromWorker::AddressMismatch { text }) => {
                    return Err(CompanionError::AddressMismatch { session: self.session.clone(), text });
                }
                Some(FromWorker::OutOfDeviceMemory { text }) => {
                    return Err(CompanionError::OutOfDeviceMemory { session: self.session.clone(), text });
                }
                Some(FromWorker::Reexec { .. }) => {
                    return Err(CompanionError::DeviceOrder { session: self.session.clone() });
                }
                Some(answer) => return Ok(answer),
            }
        }
    }

    /// Handles messages that may come between an order and its answer; returns any other message.
    fn handle_between(
        &mut self,
        message: FromWorker,
        questions: Questions<'_>,
        progress: Option<&Progress>,
    ) -> Result<Option<FromWorker>, CompanionError> {
        let answer = match message {
            FromWorker::Progress { done, total, written } => {
                if let Some(progress) = progress {
                    progress.done.store(done, Relaxed);
                    progress.total.store(total, Relaxed);
                    progress.written.store(written, Relaxed);
                }
                return Ok(None);
            }
            FromWorker::Written { part } => {
                self.ended = Some(Ok(part));
                return Ok(None);
            }
            FromWorker::Unwritten { text } => {
                self.ended = Some(Err(text));
                return Ok(None);
            }
            FromWorker::Attached {} => return Ok(None),
            FromWorker::Has { .. } | FromWorker::Put { .. } | FromWorker::PutState { .. } => {
                self.answer_write(message, questions)
            }
            FromWorker::Get { .. } | FromWorker::GetState { .. } => self.answer_read(&message, questions),
            other => return Ok(Some(other)),
        };
        let answer = answer.unwrap_or_else(|text| ToWorker::StoreFailed { text });
        self.send(&answer, None)?;
        Ok(None)
    }

    /// Answers a question of a worker that writes an image.
    fn answer_write(&mut self, message: FromWorker, questions: Questions<'_>) -> Result<ToWorker, String> {
        let Questions::Write(writer) = questions else { return Err("nothing is being written".to_owned()) };
        match message {
            FromWorker::Has { hashes } => {
                if hashes.len() % HASH_BYTES != 0 || hashes.len() / HASH_BYTES > MAX_REQUEST_HASHES {
                    return Err("a question of no whole hashes".to_owned());
                }
                let ids = hashes.chunks_exact(HASH_BYTES).filter_map(|hash| hash.try_into().ok());
                let held = ids.map(|hash| u8::from(writer.has(&ChunkId::from_bytes(hash)))).collect();
                Ok(ToWorker::HeldChunks { held })
            }
            FromWorker::Put { data } => {
                writer.put(&data).map(|_| ToWorker::Stored {}).map_err(|error| error.to_string())
            }
            FromWorker::PutState { name, data, last } => self.take_piece(writer, name, &data, last != 0),
            _ => Err("no question".to_owned()),
        }
    }

    fn take_piece(&mut self, writer: &Writer, name: String, data: &[u8], last: bool) -> Result<ToWorker, String> {
        // A worker may interleave the pieces of several files: the bound applies to their sum.
        let held: usize = self.pieces.values().map(Vec::len).sum();
        if held + data.len() > MAX_SENT_STATE_BYTES {
            return Err(format!("{name} is larger than a state file may be"));
        }
        self.pieces.entry(name.clone()).or_default().extend_from_slice(data);
        if last {
            let bytes = self.pieces.remove(&name).unwrap_or_default();
            writer.session_state(&name, &bytes).map_err(|error| error.to_string())?;
        }
        Ok(ToWorker::Stored {})
    }

    /// Answers a question of a worker that reads an image.
    fn answer_read(&mut self, message: &FromWorker, questions: Questions<'_>) -> Result<ToWorker, String> {
        let Questions::Read(catalogue) = questions else { return Err("nothing is being read".to_owned()) };
        match message {
            FromWorker::Get { hash } => {
                let hash = hash.as_slice().try_into().map_err(|_| "that is not a hash".to_owned())?;
                let id = ChunkId::from_bytes(hash);
                let length = catalogue.lengths.get(&id).ok_or_else(|| format!("the checkpoint has no chunk {id}"))?;
                let mut data = vec![0; *length];
                catalogue.reader.read(&id, &mut data).map_err(|error| error.to_string())?;
                Ok(ToWorker::Chunk { data })
            }
            FromWorker::GetState { name, offset } => self.state.piece(catalogue, name, *offset),
            _ => Err("no question".to_owned()),
        }
    }

    fn send(&self, order: &ToWorker, fd: Option<BorrowedFd<'_>>) -> Result<(), CompanionError> {
        let message = order.encode().map_err(|error| self.broken(error.into()))?;
        self.channel.send(&message, fd.as_slice()).map_err(|error| self.broken(error))
    }

    fn receive(&self, timeout: Duration) -> Result<FromWorker, CompanionError> {
        let message = self.channel.receive(timeout).map_err(|error| self.broken(error))?;
        FromWorker::decode(&message.bytes).map_err(|error: EnvelopeError| self.broken(error.into()))
    }

    fn broken(&self, source: ControlError) -> CompanionError {
        CompanionError::ControlChannel { session: self.session.clone(), source }
    }

    pub(crate) fn unexpected(&self, message: &FromWorker) -> CompanionError {
        let name = format!("{message:?}");
        let what = format!("{} was not asked for", name.split(' ').next().unwrap_or_default());
        CompanionError::Breach { session: self.session.clone(), what }
    }
}

/// A random time to wait before memory of a device is tried again.
fn pause() -> Duration {
    let [least, most] = MEMORY_PAUSE;
    let random = RandomState::new().build_hasher().finish();
    let millis = (most - least).as_millis() as u64;
    least + Duration::from_millis(random % millis.max(1))
}

/// Settings of a snapshot.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Whether contents that CRIU would save are saved too.
    pub device_only: bool,
    /// Whether all memory is saved, even if it seems unchanged.
    pub full: bool,
    /// Level of zstd for new chunks.
    pub level: u32,
    /// Whether only an outline is saved: how the objects of a running OpenCL session were made.
    pub outline: bool,
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::thread;

    use katydid_image::{CheckpointChoice, Image, Manifest, Options};
    use katydid_tests::deadline::hang::hang_limit;
    use katydid_transport::Pending;
    use katydid_wire::SPEC_HASH;
    use katydid_wire::companion::MAX_COMPANION_MESSAGE_BYTES;
    use katydid_wire::handshake::{Build, Refused};

    use super::*;

    /// Serves companions; each answer is sent once.
    fn serve(listener: &UnixListener, answers: Vec<FromWorker>) {
        let build = Build::current(SPEC_HASH);
        for answer in answers {
            let (socket, _) = listener.accept().unwrap();
            let pending = Pending::accept(socket.into(), &build, hang_limit()).unwrap();
            let ready =
                Ready { worker_pid: 1, key: SessionKey::NONE, driver: "softcuda".to_owned(), arenas: Vec::new() };
            let channel =
                ControlChannel::over(pending.consent(&build, &ready).unwrap(), MAX_COMPANION_MESSAGE_BYTES).unwrap();
            let order = ToWorker::decode(&channel.receive(hang_limit()).unwrap().bytes).unwrap();
            assert!(matches!(order, ToWorker::Restore { session, .. } if session == "p1"));
            channel.send(&answer.encode().unwrap(), &[]).unwrap();
        }
    }

    /// The outcome of a rebuild by workers with these answers; all of them must have been asked.
    fn rebuilt_by(answers: Vec<FromWorker>) -> Result<Companion, CompanionError> {
        let folder = tempfile::tempdir().unwrap();
        let image = Image::create_or_open(folder.path().join("image")).unwrap();
        image.begin(Options::default()).unwrap().commit(Manifest::default()).unwrap();
        let reader = image.checkpoint(CheckpointChoice::Latest).unwrap();
        let catalogue = Catalogue::new(&reader);
        let plan = Rebuild {
            catalogue: &catalogue,
            directory: None,
            device_only: true,
            rehearsal: false,
            memory: None,
            generations: &Generations::default(),
            devices: "",
        };
        let address = Address::Unix(folder.path().join("server"));
        let listener = UnixListener::bind(folder.path().join("server")).unwrap();
        thread::scope(|scope| {
            let server = scope.spawn(|| serve(&listener, answers));
            let outcome = Companion::rebuild(&address, "p1", &plan, &Progress::default());
            server.join().unwrap();
            outcome
        })
    }

    #[test]
    fn session_in_use_is_not_a_server_failure() {
        let is_of_server = |code| {
            let source = HandshakeError::Refused(Refused::new(code, "no"));
            CompanionError::Connect(ConnectError::Handshake { address: Address::Unix("server".into()), source })
                .is_of_server()
        };
        assert!([RefusalCode::BUSY, RefusalCode::CROWDED, RefusalCode::DRIVER].into_iter().all(is_of_server));
        assert!(![RefusalCode::IN_USE, RefusalCode::NO_SESSION].into_iter().any(is_of_server));
    }

    fn elsewhere(number: u32) -> FromWorker {
        FromWorker::AddressMismatch { text: format!("attempt {number}") }
    }

    #[test]
    fn another_worker_is_asked_while_addresses_are_others() {
        let companion = rebuilt_by(vec![
            elsewhere(1),
            elsewhere(2),
            FromWorker::Restored { frames: 5, moved: MovedVariable::encode(&[]) },
        ])
        .unwrap();
        assert_eq!(companion.session, "p1");
    }

    #[test]
    fn a_state_is_read_once_for_all_its_pieces() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image");
        let image = Image::create_or_open(&path).unwrap();
        let writer = image.begin(Options::default()).unwrap();
        let bytes: Vec<u8> = (0..2 * MAX_STATE_PIECE_BYTES + 3).map(|at| at as u8).collect();
        let entry = writer.session_state("journal", &bytes).unwrap();
        let states = [("journal".to_owned(), entry.clone())].into();
        let sessions = vec![katydid_image::Session { states, ..Default::default() }];
        writer.commit(Manifest { sessions, ..Manifest::default() }).unwrap();
        let reader = image.checkpoint(CheckpointChoice::Latest).unwrap();
        let catalogue = Catalogue::new(&reader);
        let (mut state, mut read) = (StateRead::default(), Vec::new());
        while read.len() < bytes.len() {
            let ToWorker::State { total, data } = state.piece(&catalogue, &entry.name, read.len() as u64).unwrap()
            else {
                unreachable!()
            };
            assert_eq!(total, bytes.len() as u64);
            read.extend(data);
            // A second read of the file would fail.
            let _ = std::fs::remove_file(path.join("checkpoints/000001").join(&entry.name));
        }
        assert!(read == bytes && state.0.is_none());
        assert!(state.piece(&catalogue, &entry.name, 0).is_err());
    }

    #[test]
    fn the_reason_is_that_of_the_last_worker() {
        let refused = rebuilt_by((1..=REBUILD_ATTEMPTS).map(elsewhere).collect()).unwrap_err();
        assert_eq!(refused.to_string(), format!("p1: attempt {REBUILD_ATTEMPTS}"));
    }

    #[test]
    fn another_worker_is_asked_after_one_without_memory() {
        let no_room = || FromWorker::OutOfDeviceMemory { text: "no memory".to_owned() };
        let restored = FromWorker::Restored { frames: 5, moved: MovedVariable::encode(&[]) };
        assert!(rebuilt_by(vec![no_room(), restored]).is_ok());
        let pauses: Vec<Duration> = (0..64).map(|_| pause()).collect();
        assert!(pauses.iter().all(|pause| (MEMORY_PAUSE[0]..MEMORY_PAUSE[1]).contains(pause)));
        assert!(pauses.windows(2).any(|pair| pair[0] != pair[1]), "two rebuilds would meet again and again");
    }

    #[test]
    fn a_server_that_is_missing_or_silent_is_found_by_a_greeting() {
        let folder = tempfile::tempdir().unwrap();
        let silent = folder.path().join("silent");
        let _listener = std::os::unix::net::UnixListener::bind(&silent).unwrap();
        for path in [folder.path().join("missing"), silent] {
            let error = greet(&Address::Unix(path), Duration::from_millis(100)).unwrap_err();
            assert!(error.is_of_server(), "{error}");
        }
    }

    #[test]
    fn any_other_refusal_is_final() {
        let refused = rebuilt_by(vec![FromWorker::Failed { text: "no memory".to_owned() }]).unwrap_err();
        assert_eq!(refused.to_string(), "p1: no memory");
    }
}

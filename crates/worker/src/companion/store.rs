//! Storage of a session's chunks and states: the image's folder, or the supervisor at the other end of the companion's
//! connection.
//!
//! Many threads may send requests over the connection at once. Answers come in the order of the requests, so requests wait in a
//! queue. When the connection ends, each of them gets an error.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use katydid_image::{
    CheckpointChoice, CheckpointNumber, CheckpointPart, CheckpointReader, ChunkId, Compression, FileEntry, Image,
    ImageError, ImageSource, MAX_SESSION_STATE_BYTES, Options, Result, Session, Sink,
};
use katydid_wire::companion::{FromWorker, MAX_STATE_PIECE_BYTES, Store, ToWorker};
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;

use crate::companion::writer::CompanionWriter;
use crate::os::sandbox::has_own_user;

/// Name of the state with the session's part of the manifest, for an image behind a connection.
const SESSION_PART_KEY: &str = "part";

/// Reads and writes an image through the supervisor's connection.
pub(crate) struct ImageClient {
    writer: Arc<CompanionWriter>,
    /// Requests that wait for an answer, oldest first; none once the connection is gone.
    waiting: Mutex<Option<VecDeque<SyncSender<ToWorker>>>>,
}

impl ImageClient {
    pub(crate) fn new(writer: Arc<CompanionWriter>) -> Self {
        Self { writer, waiting: Mutex::new(Some(VecDeque::new())) }
    }

    /// Delivers an answer to the thread that waits for it. Returns any other message.
    pub(crate) fn take(&self, message: ToWorker) -> Option<ToWorker> {
        let is_answer = matches!(
            message,
            ToWorker::HeldChunks { .. }
                | ToWorker::Stored {}
                | ToWorker::Chunk { .. }
                | ToWorker::State { .. }
                | ToWorker::StoreFailed { .. }
        );
        if !is_answer {
            return Some(message);
        }
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(asker) = waiting.as_mut().and_then(VecDeque::pop_front) {
            // The requesting thread waits.
            let _ = asker.send(message);
        }
        None
    }

    /// Notes that the connection is gone.
    pub(crate) fn end(&self) {
        *self.waiting.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn ask(&self, question: &FromWorker) -> Result<ToWorker> {
        let closed = |_| unfit("the connection to the supervisor is gone");
        let (answer, answered) = sync_channel(1);
        {
            // Sent under the lock, so that the queue has the order of the requests.
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            let queue = waiting.as_mut().ok_or_else(|| closed(()))?;
            self.writer.send(question).map_err(|error| unfit(error.to_string()))?;
            queue.push_back(answer);
        }
        match answered.recv().map_err(|_| closed(()))? {
            ToWorker::StoreFailed { text } => Err(unfit(text)),
            answer => Ok(answer),
        }
    }

    /// Fetches a whole state file of the checkpoint.
    fn state(&self, name: &str) -> Result<Vec<u8>> {
        let mut pieces = Pieces::default();
        loop {
            let question = FromWorker::GetState { name: name.to_owned(), offset: pieces.bytes.len() as u64 };
            let ToWorker::State { total, data } = self.ask(&question)? else { return Err(mixed_up()) };
            if pieces.add(name, total, &data)? {
                return Ok(pieces.bytes);
            }
        }
    }
}

/// A state that arrives in pieces.
#[derive(Default)]
struct Pieces {
    bytes: Vec<u8>,
    /// The state's length, as the first piece gives it.
    total: Option<u64>,
}

impl Pieces {
    /// Takes the next piece. Returns true after the last one.
    fn add(&mut self, name: &str, total: u64, data: &[u8]) -> Result<bool> {
        if *self.total.get_or_insert(total) != total {
            return Err(unfit(format!("{name} changes its length")));
        }
        if total > MAX_SESSION_STATE_BYTES {
            return Err(unfit(format!("{name} is larger than a state file may be")));
        }
        self.bytes.extend_from_slice(data);
        let received_bytes = self.bytes.len() as u64;
        if received_bytes > total {
            return Err(unfit(format!("{name} has more than its {total} bytes")));
        }
        if received_bytes < total && data.is_empty() {
            return Err(unfit(format!("{name} ends after {received_bytes} of {total} bytes")));
        }
        Ok(received_bytes == total)
    }
}

fn unfit(what: impl Into<String>) -> ImageError {
    ImageError::Unfit { location: "the supervisor's image".to_owned(), what: what.into() }
}

fn mixed_up() -> ImageError {
    unfit("the supervisor answered another question")
}

impl Sink for ImageClient {
    fn put(&self, chunk: &[u8]) -> Result<ChunkId> {
        let id = ChunkId::of(chunk);
        if self.has(&id) {
            return Ok(id);
        }
        match self.ask(&FromWorker::Put { data: chunk.to_vec() })? {
            ToWorker::Stored {} => Ok(id),
            _ => Err(mixed_up()),
        }
    }

    fn has(&self, id: &ChunkId) -> bool {
        let answer = self.ask(&FromWorker::Has { hashes: id.as_bytes().to_vec() });
        // Storing the chunk will report the failure again.
        matches!(answer, Ok(ToWorker::HeldChunks { held }) if held == [1])
    }

    fn session_state(&self, name: &str, bytes: &[u8]) -> Result<FileEntry> {
        let count = bytes.len().div_ceil(MAX_STATE_PIECE_BYTES).max(1);
        for number in 0..count {
            let data = bytes.chunks(MAX_STATE_PIECE_BYTES).nth(number).unwrap_or_default().to_vec();
            let last = u32::from(number + 1 == count);
            match self.ask(&FromWorker::PutState { name: name.to_owned(), data, last })? {
                ToWorker::Stored {} => {}
                _ => return Err(mixed_up()),
            }
        }
        Ok(FileEntry { name: state_file(name), bytes: bytes.len() as u64, blake3: ChunkId::of(bytes) })
    }
}

/// Returns the image's file name of a state.
fn state_file(name: &str) -> String {
    format!("state-{name}.bin")
}

impl ImageSource for ImageClient {
    fn read(&self, id: &ChunkId, buffer: &mut [u8]) -> Result<()> {
        let ToWorker::Chunk { data } = self.ask(&FromWorker::Get { hash: id.as_bytes().to_vec() })? else {
            return Err(mixed_up());
        };
        if data.len() != buffer.len() || ChunkId::of(&data) != *id {
            return Err(unfit(format!("chunk {id} came damaged")));
        }
        buffer.copy_from_slice(&data);
        Ok(())
    }

    fn state(&self, entry: &FileEntry) -> Result<Vec<u8>> {
        let bytes = ImageClient::state(self, &entry.name)?;
        if ChunkId::of(&bytes) == entry.blake3 { Ok(bytes) } else { Err(unfit(format!("{} came damaged", entry.name))) }
    }
}

/// Returns whether the system refuses to open such a file in the folder, or the file would belong to the worker's own user alone.
/// Other faults of the folder show when it is used.
fn is_closed(folder: &OwnedFd, how: OFlags) -> bool {
    if has_own_user() {
        return true;
    }
    let opened = openat(folder, ".", how | OFlags::CLOEXEC, Mode::from_raw_mode(0o600));
    matches!(opened, Err(Errno::ACCESS | Errno::PERM))
}

/// An image being written.
pub(crate) enum RemoteOutput {
    /// The worker writes the image's files itself.
    Folder(Box<CheckpointPart>),
    /// The supervisor writes the image; the worker sends it chunks and states.
    Stream(Arc<ImageClient>),
}

impl RemoteOutput {
    /// Opens the storage that an order names.
    pub(crate) fn open(
        store: Store,
        folder: Option<OwnedFd>,
        checkpoint: u32,
        level: u32,
        asker: &Arc<ImageClient>,
    ) -> Result<Self> {
        match (store, folder) {
            // The supervisor takes what a sandboxed worker may not write.
            (Store::DIRECTORY, Some(folder)) if !is_closed(&folder, OFlags::TMPFILE | OFlags::WRONLY) => {
                let level = i32::try_from(level).unwrap_or(i32::MAX);
                let compression = if level == 0 { Compression::None } else { Compression::Zstd(level) };
                let options = Options { compression, ..Options::default() };
                Ok(Self::Folder(Box::new(Image::open_at(folder)?.join(CheckpointNumber(checkpoint), options)?)))
            }
            (Store::STREAM, _) | (Store::DIRECTORY, Some(_)) => Ok(Self::Stream(Arc::clone(asker))),
            _ => Err(unfit("the order says neither where the image is nor that it is to be sent")),
        }
    }

    /// Preallocates `bytes`, where that helps.
    pub(crate) fn preallocate(&self, bytes: u64) -> Result<()> {
        match self {
            Self::Folder(part) => part.preallocate(bytes),
            Self::Stream(_) => Ok(()),
        }
    }

    pub(crate) fn sink(&self) -> &dyn Sink {
        match self {
            Self::Folder(part) => &**part,
            Self::Stream(asker) => &**asker,
        }
    }

    /// Returns the bytes that the image has taken so far.
    pub(crate) fn written(&self) -> u64 {
        match self {
            Self::Folder(part) => part.written().stored,
            Self::Stream(_) => 0,
        }
    }

    /// Stores the session's description, or returns it, for the process that commits.
    pub(crate) fn finish(self, mut session: Session) -> Result<Vec<u8>> {
        let json = |session: &Session| serde_json::to_vec(session).map_err(|error| unfit(error.to_string()));
        match self {
            Self::Folder(part) => part.finish(&session).map(|_| Vec::new()),
            Self::Stream(asker) => {
                let entry = asker.session_state(&format!("{}.{SESSION_PART_KEY}", session.name), &json(&session)?)?;
                session.states.insert(SESSION_PART_KEY.to_owned(), entry);
                json(&session)
            }
        }
    }
}

/// An image being read.
pub(crate) enum RemoteInput {
    Folder(Box<CheckpointReader>),
    Stream(Arc<ImageClient>),
}

impl RemoteInput {
    pub(crate) fn open(
        store: Store,
        folder: Option<OwnedFd>,
        checkpoint: u32,
        asker: &Arc<ImageClient>,
    ) -> Result<Self> {
        match (store, folder) {
            (Store::DIRECTORY, Some(folder)) if !is_closed(&folder, OFlags::DIRECTORY | OFlags::RDONLY) => {
                let which = CheckpointChoice::Number(CheckpointNumber(checkpoint));
                Ok(Self::Folder(Box::new(Image::open_at(folder)?.checkpoint(which)?)))
            }
            (Store::STREAM, _) | (Store::DIRECTORY, Some(_)) => Ok(Self::Stream(Arc::clone(asker))),
            _ => Err(unfit("the order says neither where the image is nor that it will be sent")),
        }
    }

    pub(crate) fn source(&self) -> &dyn ImageSource {
        match self {
            Self::Folder(reader) => &**reader,
            Self::Stream(asker) => &**asker,
        }
    }

    /// Returns the image's description of a session.
    pub(crate) fn part(&self, name: &str) -> Result<Session> {
        match self {
            Self::Folder(reader) => {
                let found = reader.manifest().sessions.iter().find(|session| session.name == name);
                found.cloned().ok_or_else(|| unfit(format!("the checkpoint has no session {name}")))
            }
            Self::Stream(asker) => {
                let bytes = ImageClient::state(asker, &state_file(&format!("{name}.{SESSION_PART_KEY}")))?;
                serde_json::from_slice(&bytes).map_err(|error| unfit(error.to_string()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds pieces, each with the total length that comes with it.
    fn of(inputs: &[(u64, &[u8])]) -> Result<Vec<bool>> {
        let mut pieces = Pieces::default();
        inputs.iter().map(|(total, data)| pieces.add("journal", *total, data)).collect()
    }

    #[test]
    fn a_state_is_whole_with_its_last_piece() {
        assert_eq!(of(&[(5, b"abc"), (5, b"de")]).unwrap(), [false, true]);
        assert_eq!(of(&[(0, b"")]).unwrap(), [true]);
    }

    #[test]
    fn a_state_is_as_long_as_was_said_first_and_no_longer_than_states_are() {
        for (inputs, why) in [
            (&[(5, &b"abc"[..]), (6, b"de")][..], "changes its length"),
            (&[(MAX_SESSION_STATE_BYTES + 1, b"abc")], "larger than a state file may be"),
            (&[(2, b"abc")], "more than its 2 bytes"),
            (&[(5, b"abc"), (5, b"")], "ends after 3 of 5 bytes"),
        ] {
            let refused = of(inputs).unwrap_err().to_string();
            assert!(refused.contains(why), "{refused}");
        }
    }
}

//! The saved state of a session: everything in a checkpoint except contents of memory and images of code.
//!
//! ```text
//! magic       8 bytes "kdstate\n"        version  u32
//! opening     arenas: count u32, then kind u32, base u64, length u64; limit of memory u64, 0: none; facts bytes
//! pending     ids seen of each kind of handle 7 u32; deferred u32, calls u64, frames executed u64, printed: two texts of
//!             bytes, whether the link is relayed u8
//!             uploads: count u32, then thread u32, total u64, bytes      linked: count u32, then thread u32, bytes
//!             the waiting upcall thread: u8, then thread u32, context u32, sequence u64
//! names       count u32, then name and layout u64 of each message
//! records     count u32, then `record.rs` of session-core; twice: what needs no program, and what waits for it
//! times       `event_times.rs`
//! exports       since version 2: exporter id (none: nothing was exported); count u32, then kind u32 (1 range, 2 block, 3 event),
//!             its address or id u64, length u64, secret bytes
//! sketches    since version 3, among the records: room of executable graphs that are made later
//! streams     since version 4, among the records: how many there were at once
//! ```
//!
//! Numbers are little-endian, bytes and texts have a `u32` length in front. A reader trusts nothing: a count costs
//! input for every item, ranges are checked, and replayed frames pass the checks of every frame.

use std::collections::BTreeMap;

use katydid_arena::AddressMap;
use katydid_session_core::{
    Api as _, JournalRecord, MessageTable, SavedProgress, StateError, StateFormat, UnfinishedUploads, put_all,
    put_uploads, read_unread_answers, take_all, take_uploads, upcall_head, write_unread_answers,
};
use katydid_wire::codec::{Field as _, Message as _, Reader};
use katydid_wire::facts::Facts;
use katydid_wire::frame::FrameHead;
use katydid_wire::handshake::{ArenaKind, ArenaRange};
use katydid_wire::message::{kdUpcallNext, message_name};

use super::event_times::SavedTimes;
use crate::calls::session_shared::Cuda;
use crate::memory::shares::{Export, Exports, SharedObject};

/// The magic bytes, and the version that this build writes.
const CUDA_STATE_FORMAT: StateFormat = StateFormat { magic: *b"kdstate\n", version: 4 };
/// Most arenas of a map.
const MAX_SAVED_ARENAS: u32 = 16;

/// The requirements that a worker needs before it can make the session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionRequirements {
    /// The address ranges of the arenas.
    pub arenas: Vec<ArenaRange>,
    /// Most device memory that the session may hold, in bytes; none: no limit.
    pub memory_limit: Option<u64>,
    /// The facts of the devices that the program received; they stay the same.
    pub facts: Facts,
}

/// Pending work between frames.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Pending {
    /// Ids seen so far, by kind of handle.
    pub(crate) id_counts: [u32; 7],
    pub(crate) progress: SavedProgress,
    /// Whether a separate thread reads the link.
    pub(crate) is_relayed: bool,
    /// Incomplete images: thread, size, the bytes so far.
    pub(crate) uploads: UnfinishedUploads,
    /// Images that threads have linked and not fetched.
    pub(crate) linked: Vec<(u32, Vec<u8>)>,
    /// The program's upcall thread waits for this frame's reply.
    pub(crate) upcall: Option<FrameHead>,
}

/// Everything that the saved state of a session holds.
#[derive(Debug)]
pub(crate) struct JournalState {
    pub(crate) opening: SessionRequirements,
    pub(crate) pending: Pending,
    /// Records that can be replayed before the program is there.
    pub(crate) first: Vec<JournalRecord>,
    /// Records that need the program's memory.
    pub(crate) second: Vec<JournalRecord>,
    pub(crate) times: SavedTimes,
    pub(crate) exports: Exports,
}

impl SessionRequirements {
    /// Reads the start of saved state.
    ///
    /// # Errors
    ///
    /// [`StateError`].
    pub fn read(bytes: &[u8]) -> Result<Self, StateError> {
        Self::take(&mut CUDA_STATE_FORMAT.open(bytes)?.0)
    }

    fn put(&self, out: &mut Vec<u8>) {
        (self.arenas.len() as u32).put(out);
        for arena in &self.arenas {
            arena.kind.0.put(out);
            arena.base.put(out);
            arena.length.put(out);
        }
        self.memory_limit.unwrap_or(0).put(out);
        self.facts.encode().put(out);
    }

    fn take(reader: &mut Reader<'_>) -> Result<Self, StateError> {
        let count = reader.take::<u32>()?;
        if count > MAX_SAVED_ARENAS {
            return Err(StateError::Damaged { what: "the number of arenas" });
        }
        let mut arenas = Vec::new();
        for _ in 0..count {
            let (kind, base, length) = (ArenaKind(reader.take()?), reader.take::<u64>()?, reader.take::<u64>()?);
            if base.checked_add(length).is_none_or(|end| end > 1 << 47) {
                return Err(StateError::Damaged { what: "the place of an arena" });
            }
            arenas.push(ArenaRange { kind, base, length });
        }
        AddressMap::from_arenas(&arenas).ok_or(StateError::Damaged { what: "a map without device memory" })?;
        let (limit, facts) = (reader.take::<u64>()?, reader.take::<Vec<u8>>()?);
        let facts = Facts::decode(&facts).map_err(|_| StateError::Damaged { what: "what is told of the devices" })?;
        Ok(Self { arenas, memory_limit: Some(limit).filter(|limit| *limit != 0), facts })
    }
}

impl Pending {
    fn put(&self, out: &mut Vec<u8>) {
        self.id_counts.iter().for_each(|id_counts| id_counts.put(out));
        self.progress.put(out);
        u8::from(self.is_relayed).put(out);
        put_uploads(&self.uploads, out);
        write_unread_answers(&self.linked, out);
        u8::from(self.upcall.is_some()).put(out);
        if let Some(head) = &self.upcall {
            head.thread.put(out);
            head.context.put(out);
            head.sequence.put(out);
        }
    }

    fn take(reader: &mut Reader<'_>) -> Result<Self, StateError> {
        let mut id_counts = [0; 7];
        for count in &mut id_counts {
            *count = reader.take()?;
        }
        let progress = SavedProgress::take(reader)?;
        let is_relayed = reader.take::<u8>()? != 0;
        let (uploads, linked) = (take_uploads(reader)?, read_unread_answers(reader)?);
        let upcall = match reader.take::<u8>()? {
            0 => None,
            _ => Some(upcall_head(kdUpcallNext::OPCODE, reader.take()?, reader.take()?, reader.take()?)?),
        };
        Ok(Self { id_counts, progress, is_relayed, uploads, linked, upcall })
    }
}

impl Exports {
    fn put(&self, out: &mut Vec<u8>) {
        self.exporter_id.map_or_else(Vec::new, Vec::from).put(out);
        (self.exports.len() as u32).put(out);
        for Export { subject, length, secret } in &self.exports {
            let (kind, id): (u32, u64) = match *subject {
                SharedObject::Range(address) => (1, address),
                SharedObject::Block(id) => (2, id.into()),
                SharedObject::Event(id) => (3, id.into()),
            };
            kind.put(out);
            id.put(out);
            length.put(out);
            secret.to_vec().put(out);
        }
    }

    fn take(reader: &mut Reader<'_>) -> Result<Self, StateError> {
        let damaged = || StateError::Damaged { what: "what is exported" };
        let exporter_id = reader.take::<Vec<u8>>()?;
        let exporter_id =
            if exporter_id.is_empty() { None } else { Some(exporter_id.try_into().map_err(|_| damaged())?) };
        let mut exports = Vec::new();
        for _ in 0..reader.take::<u32>()? {
            let (kind, id, length) = (reader.take::<u32>()?, reader.take::<u64>()?, reader.take()?);
            let number = u32::try_from(id).map_err(|_| damaged());
            let subject = match kind {
                1 => SharedObject::Range(id),
                2 => SharedObject::Block(number?),
                3 => SharedObject::Event(number?),
                _ => return Err(damaged()),
            };
            let secret = reader.take::<Vec<u8>>()?.try_into().map_err(|_| damaged())?;
            exports.push(Export { subject, length, secret });
        }
        Ok(Self { exporter_id, exports })
    }
}

impl JournalState {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let (mut names, mut records) = (MessageTable::new(Cuda::MESSAGES), Vec::new());
        for list in [&self.first, &self.second] {
            put_all(&mut records, list.iter(), |record, out| record.put(&mut names, out));
        }
        let mut out = CUDA_STATE_FORMAT.begin();
        self.opening.put(&mut out);
        self.pending.put(&mut out);
        names.put(&mut out);
        out.append(&mut records);
        self.times.put(&mut out);
        self.exports.put(&mut out);
        out
    }

    /// # Errors
    ///
    /// [`StateError`].
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, StateError> {
        let (mut reader, version) = CUDA_STATE_FORMAT.open(bytes)?;
        let opening = SessionRequirements::take(&mut reader)?;
        let pending = Pending::take(&mut reader)?;
        let names = MessageTable::take(Cuda::MESSAGES, &mut reader)?;
        let mut list = || take_all(&mut reader, |reader| JournalRecord::take(&names, reader));
        let (first, second) = (list()?, list()?);
        let times = SavedTimes::take(&mut reader)?;
        let exports = if version < 2 { Exports::default() } else { Exports::take(&mut reader)? };
        Ok(reader.finish(Self { opening, pending, first, second, times, exports })?)
    }
}

/// Returns how many frames of each message a saved state would replay, as a summary.
///
/// # Errors
///
/// [`StateError`].
pub fn messages_of(bytes: &[u8]) -> Result<BTreeMap<&'static str, usize>, StateError> {
    let JournalState { first, second, .. } = JournalState::decode(bytes)?;
    let mut all = BTreeMap::new();
    for record in first.iter().chain(&second) {
        *all.entry(message_name(record.opcode).unwrap_or("first use of code")).or_default() += 1;
    }
    Ok(all)
}

/// Returns all records that a saved state would replay.
///
/// # Errors
///
/// [`StateError`].
pub(crate) fn records_of(bytes: &[u8]) -> Result<Vec<JournalRecord>, StateError> {
    let JournalState { first, second, .. } = JournalState::decode(bytes)?;
    Ok(first.into_iter().chain(second).collect())
}

/// Decodes a saved state, for tests that compare those of two sessions.
#[cfg(test)]
pub(crate) fn read_state(bytes: &[u8]) -> Result<JournalState, StateError> {
    JournalState::decode(bytes)
}

//! The companion protocol: the messages between a supervisor and a session's worker, beside the program's frames.
//!
//! The supervisor connects to the session's server as a program would, with a hello whose role is *companion*. With the
//! session's key, the server passes the connection to that session's worker. With no key, it passes it to a warm worker
//! that will rebuild a session from an image. After `Ready` the connection carries envelopes ([`crate::envelope`]).
//!
//! ```text
//! supervisor                                   worker
//!   ├── Prepare (+ directory) ─────────────────▶│  the program runs
//!   │◀─────────────────────────────── Prepared ─┤
//!   ├── Pause ─────────────────────────────────▶│  works off everything that was sent, waits for the GPU
//!   │◀───────────────────────────────── Paused ─┤
//!   ├── Detach ────────────────────────────────▶│  only if the program is to leave: it is waited for from now on
//!   │◀─────────────────────────────── Detached ─┤
//!   ├── Snapshot ──────────────────────────────▶│  meanwhile the program may leave
//!   │◀─────────────────────────────── Captured ─┤  the program may go on
//!   ├── Resume ────────────────────────────────▶│
//!   │◀──────────────────────────────── Resumed ─┤
//!   ├── Write ─────────────────────────────────▶│  nothing waits for it any more, so it may take the machine
//!   │◀───────────────────── Progress … Written ─┤
//!
//!   ├── Prepare, Snapshot, Write ──────────────▶│  of an outline alone: the program runs all the while
//!   │◀──────────── Prepared, Captured, Written ─┤
//!
//!   ├── Restore (+ directory) ─────────────────▶│  as to another order of devices, it begins anew first (`Reexec`)
//!   │◀──────────────────── Progress … Restored ─┤  detached: waits for its program; of an outline, for another order
//!   ├── Restore (+ directory) ─────────────────▶│  after an outline: the image of the same session, which has contents
//!   │◀── Progress … Restored or AddressMismatch ┤  or what was made of the outline is not of that
//! ```
//!
//! The worker answers `Restore` of a rehearsal (`rehearsal: 1`) in the same way. Then the supervisor closes the connection, and
//! the worker ends. A session without enough device memory answers `OutOfDeviceMemory`.
//!
//! Every order has one answer, in the order of the orders. Only `Progress` and the end of a snapshot (`Written` or `Unwritten`,
//! which answer `Write`) come in between. After `Failed` nothing has changed; but after a failed `Restore` the worker ends. When
//! its companion is gone, a paused session resumes, and a detached one ends.
//!
//! A session that no replay brings back is kept as the process of its worker. The worker gives up what no image of a process can
//! have (`Suspend`) and its companion leaves. Another process of its server, the *keeper* (role *keeper* in the hello), saves the
//! worker's process, which is stopped meanwhile:
//!
//! ```text
//! supervisor                                   worker
//!   ├── Suspend ───────────────────────────────▶│  paused, and its program has left
//!   │◀────────────────────────────── Suspended ─┤  the connection ends; this is no end of the session
//!                                              keeper
//!   ├── SaveProcess ───────────────────────────▶│  saves the worker's process
//!   │◀────────────────── Put … and ProcessSaved ┤  which stands still
//!   ├── ResumeProcess, or the connection's end ▶│  the worker goes on, and waits for a companion
//!   │◀───────────────────────── ProcessResumed ─┤
//!   ├── End ───────────────────────────────────▶│  or it is killed
//!   │◀────────────────────────────────── Ended ─┤
//!
//!   ├── Revive ────────────────────────────────▶│  elsewhere, without a key: restores such a process
//!   │◀────────────────────── Get … and Revived ─┤  it serves the session of the key that is in `Ready`
//!                                              worker
//!   ├── Refill (+ directory) ──────────────────▶│  has its memory again
//!   │◀───────────────────── Progress … Refilled ┤  paused and detached, as before `Suspend`
//! ```
//!
//! The worker writes an image itself, into a directory whose descriptor comes with the order. Where descriptors cannot pass
//! (TCP), the supervisor writes it: [`Store::STREAM`]. Then the worker sends requests to the image store (`Has`, `Put`,
//! `PutState`; `Get`, `GetState`). The supervisor answers each request by the message that its description names, in the order of
//! the requests.

use crate::codec::{CodecError, Field, Reader};
use crate::envelope::{self, EnvelopeError, messages};

/// Largest message in bytes: a chunk of 2 MiB and the fields around it.
pub const MAX_COMPANION_MESSAGE_BYTES: usize = (2 << 20) + (64 << 10);
/// Bytes of a chunk's name, a BLAKE3 hash.
pub const HASH_BYTES: usize = 32;
/// Most hashes in one request.
pub const MAX_REQUEST_HASHES: usize = 4096;
/// Largest piece of a state file in one message, in bytes.
pub const MAX_STATE_PIECE_BYTES: usize = 1 << 20;

/// Which side writes and reads the image's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Store(pub u32);

impl Store {
    /// The worker, in the directory whose descriptor comes with the message.
    pub const DIRECTORY: Self = Self(1);
    /// The supervisor, by requests over this connection.
    pub const STREAM: Self = Self(2);
}

impl Field for Store {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
    }

    fn take(bytes: &mut &[u8]) -> Option<Self> {
        u32::take(bytes).map(Self)
    }
}

/// Most variables that a worker may report as moved.
const MAX_MOVED_VARIABLES: u32 = 1 << 16;

/// A variable of a module or library that has another address in a rebuilt session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MovedVariable {
    /// Its module or library, and its name, such as `library 3: variable table`.
    pub name: String,
    /// Address of the variable in the image.
    pub address: u64,
    /// Size of the variable in bytes.
    pub bytes: u64,
}

impl MovedVariable {
    /// Encodes a list: its length, then each variable.
    #[must_use]
    pub fn encode(entries: &[Self]) -> Vec<u8> {
        let mut out = Vec::new();
        (entries.len() as u32).put(&mut out);
        for moved in entries {
            moved.name.put(&mut out);
            moved.address.put(&mut out);
            moved.bytes.put(&mut out);
        }
        out
    }

    /// Decodes the result of [`MovedVariable::encode`].
    ///
    /// # Errors
    ///
    /// [`CodecError`].
    pub fn decode(bytes: &[u8]) -> Result<Vec<Self>, CodecError> {
        let mut reader = Reader::new("moved variables", bytes);
        let count = reader.take::<u32>()?.min(MAX_MOVED_VARIABLES);
        let read_entry =
            |reader: &mut Reader<'_>| Ok(Self { name: reader.take()?, address: reader.take()?, bytes: reader.take()? });
        let entries = (0..count).map(|_| read_entry(&mut reader)).collect::<Result<_, CodecError>>()?;
        reader.finish(entries)
    }
}

messages! {
    /// An order of the supervisor, or its answer to a request about the image.
    ToWorker at most MAX_COMPANION_MESSAGE_BYTES;
    /// Bring the session to rest. Answer: `Paused`, or `Failed` with the stream that does not finish.
    1 Pause {
        /// Frames that the program has sent, all of which are executed first.
        frames: u64,
        /// Time limit, in milliseconds.
        timeout_ms: u32,
    }
    /// Execute frames again. Answer: `Resumed`.
    2 Resume {}
    /// Expect the program to close its connection and come back. Answer: `Detached`.
    3 Detach {}
    /// Capture the state of the paused session into the open image, which this closes. Answer: `Captured`.
    4 Snapshot {
        /// Name of the session within the checkpoint.
        session: String,
        /// 1: also keep contents of memory that the program's own image will have.
        device_only: u32,
        /// 1: treat nothing as unchanged since an earlier checkpoint.
        full: u32,
        /// 1: keep only how the session's objects were made, without contents; the session need not be at rest. OpenCL only.
        outline: u32,
    }
    /// Rebuild a session from an image, then wait for its program. Answer: `Restored`, `AddressMismatch` or `Reexec`.
    5 Restore {
        /// Location of the image.
        store: Store,
        /// Name of the session within the checkpoint.
        session: String,
        /// Number of the checkpoint.
        checkpoint: u32,
        /// 1: the program lives and has its host memory, which is not in the image.
        device_only: u32,
        /// The generations of its job, 8 bytes each; the session's new generation is first.
        generations: Vec<u8>,
        /// Devices to use in place of those that the session had. For OpenCL: one a line, `NEW` or `OLD=NEW`. For CUDA: UUIDs of
        /// all devices in hexadecimal, one a line, in the order of the session's.
        devices: String,
        /// 1: only find out whether the session can be rebuilt. Its memory is mapped, with little device memory behind it and no
        /// contents; no program comes for it.
        rehearsal: u32,
    }
    /// Cancel the open snapshot. Answer: `Unwritten` in place of `Written`.
    6 Cancel {}
    /// Write the open snapshot to the image. Answer: `Written` or `Unwritten`.
    7 Write {}
    /// Open an image, and do the snapshot's work that can be done while the program runs. Answer: `Prepared`.
    8 Prepare {
        /// Location of the image.
        store: Store,
        /// Number that the checkpoint will have.
        checkpoint: u32,
        /// 1: the snapshot will treat nothing as unchanged since an earlier checkpoint.
        full: u32,
        /// zstd level of chunks; 0 is uncompressed.
        level: u32,
    }
    /// Give up everything that the image of a process cannot have: device memory in arenas, registrations, the program's memory.
    /// The session is paused, its program has left, and its snapshot is in the image. Answer: `Suspended`.
    9 Suspend {}
    /// Take back what `Suspend` gave up, with contents of the image. Answer: `Refilled`.
    10 Refill {
        /// Location of the image.
        store: Store,
        /// Name of the session within the checkpoint.
        session: String,
        /// Number of the checkpoint.
        checkpoint: u32,
        /// The session's current key.
        key: Vec<u8>,
    }
    /// Keeper: save the process of the session's worker. Answer: `ProcessSaved`.
    11 SaveProcess {}
    /// Keeper: resume the worker. Answer: `ProcessResumed`.
    12 ResumeProcess {}
    /// Keeper: end the worker. Answer: `Ended`.
    13 End {}
    /// Keeper: restore the process of a worker. Answer: `Revived`.
    14 Revive {
        /// The worker's image, as JSON.
        part: Vec<u8>,
        /// UUIDs of the session's devices in hexadecimal, one a line.
        devices: String,
    }

    /// Tells which chunks the image holds; the answer to `Has`.
    16 HeldChunks {
        /// A byte for each hash: 1 if the image holds its chunk, else 0.
        held: Vec<u8>,
    }
    /// Answers `Put` and `PutState`: the data is in the image.
    17 Stored {}
    /// Carries one chunk; the answer to `Get`.
    18 Chunk {
        /// The chunk's bytes, at most 2 MiB.
        data: Vec<u8>,
    }
    /// Carries part of a state file; the answer to `GetState`.
    19 State {
        /// Bytes of the whole file.
        total: u64,
        /// Bytes from the requested offset on, at most [`MAX_STATE_PIECE_BYTES`].
        data: Vec<u8>,
    }
    /// Answers any request that failed.
    20 StoreFailed {
        /// Reason, as text for the user.
        text: String,
    }
}

messages! {
    /// A message of the worker, or its request to the image store.
    FromWorker at most MAX_COMPANION_MESSAGE_BYTES;
    /// Nothing is in flight, except perhaps a request for the next upcall.
    1 Paused {
        /// Frames executed in all.
        frames: u64,
    }
    /// Frames are executed again.
    2 Resumed {}
    /// The end of the program's connection no longer ends the session.
    3 Detached {}
    /// Everything that the program could change is copied.
    4 Captured {
        /// Bytes that the session holds.
        bytes: u64,
        /// Of these bytes, how many may differ from the last checkpoint of this session.
        changed: u64,
        /// What it shares with other sessions, which may be in other checkpoints ([`crate::sharing`]).
        sharing: Vec<u8>,
    }
    /// Progress of the current order.
    5 Progress {
        /// Bytes of contents processed so far.
        done: u64,
        /// Bytes of contents to process in all.
        total: u64,
        /// Bytes that the image took.
        written: u64,
    }
    /// The snapshot is in the image, but not committed: the supervisor does that.
    6 Written {
        /// The session's part of the manifest, as JSON.
        part: Vec<u8>,
    }
    /// The session is rebuilt and waits for its program.
    7 Restored {
        /// Frames that it has executed: the next one it takes has this number.
        frames: u64,
        /// Variables with other addresses than in the image ([`MovedVariable`]). The program does not know their addresses, and
        /// no memory of the session contains one. The supervisor checks whether the program's own memory does.
        moved: Vec<u8>,
    }
    /// The order was not carried out. Nothing has changed.
    8 Failed {
        /// Reason, as text for the user.
        text: String,
    }
    /// The program has come back to the detached session. Not an answer to an order.
    9 Attached {}
    /// The captured snapshot could not be written. The session is unharmed. Not an answer to an order.
    10 Unwritten {
        /// Reason, as text for the user.
        text: String,
    }
    /// The image is open.
    11 Prepared {}
    /// The session cannot be rebuilt in this worker: the driver chose other addresses than those of the image, or the outline
    /// rebuilt in it is of another session. Another worker may succeed. Answer to `Restore` in that case.
    12 AddressMismatch {
        /// What has another address than in the image, as text for the user.
        text: String,
    }

    /// The device has too little free memory for the session, or for its rehearsal. Answer to `Restore` in that case.
    14 OutOfDeviceMemory {
        /// What found no memory, as text for the user.
        text: String,
    }

    /// The worker's driver has its devices in another order than the session needs, and takes a new order only when it starts. So
    /// the process re-executes itself, and takes the same `Restore` from a companion with the session's key. Answer to `Restore`
    /// in that case, and the last message on this connection.
    13 Reexec {
        /// The driver's `CUDA_VISIBLE_DEVICES`.
        devices: String,
    }

    /// The worker can be saved as a process. Its companion should leave.
    21 Suspended {}
    /// The session is as it was before `Suspend`.
    22 Refilled {}
    /// The worker's process is in the image, but not committed, and is stopped.
    23 ProcessSaved {
        /// The worker's image, as JSON.
        part: Vec<u8>,
    }
    /// The worker has resumed.
    24 ProcessResumed {}
    /// The worker is gone.
    25 Ended {}
    /// The worker waits for a companion with the session's key. The last message on this connection.
    26 Revived {}

    /// Ask which of these chunks the image has. Answer: `HeldChunks`.
    16 Has {
        /// Hashes one after the other, at most [`MAX_REQUEST_HASHES`].
        hashes: Vec<u8>,
    }
    /// Store a chunk. Answer: `Stored`.
    17 Put {
        /// Bytes of the chunk; the store names it by their hash.
        data: Vec<u8>,
    }
    /// Append to a state file of the checkpoint. Answer: `Stored`.
    18 PutState {
        /// Name of the file.
        name: String,
        /// Bytes to append, at most [`MAX_STATE_PIECE_BYTES`].
        data: Vec<u8>,
        /// 1: this is the end of the file.
        last: u32,
    }
    /// Read a chunk. Answer: `Chunk`.
    19 Get {
        /// Hash that names the chunk.
        hash: Vec<u8>,
    }
    /// Read from a state file. Answer: `State`.
    20 GetState {
        /// Name of the file.
        name: String,
        /// First byte to read.
        offset: u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::envelope::mutations::survive;

    #[test]
    fn orders_survive_encoding_and_damage_is_noticed() {
        let session = || "rank-0".to_owned();
        let orders = [
            ToWorker::Pause { frames: 12, timeout_ms: 5000 },
            ToWorker::Resume {},
            ToWorker::Detach {},
            ToWorker::Prepare { store: Store::DIRECTORY, checkpoint: 7, full: 1, level: 3 },
            ToWorker::Snapshot { session: session(), device_only: 0, full: 1, outline: 0 },
            ToWorker::Restore {
                store: Store::STREAM,
                session: session(),
                checkpoint: 4,
                device_only: 0,
                generations: vec![7; 16],
                devices: "cpu".into(),
                rehearsal: 1,
            },
            ToWorker::Cancel {},
            ToWorker::Write {},
            ToWorker::Suspend {},
            ToWorker::Refill { store: Store::STREAM, session: session(), checkpoint: 4, key: vec![5; 16] },
            ToWorker::SaveProcess {},
            ToWorker::ResumeProcess {},
            ToWorker::End {},
            ToWorker::Revive { part: b"{}".into(), devices: "00ff".into() },
            ToWorker::HeldChunks { held: vec![1, 0, 1] },
            ToWorker::Stored {},
            ToWorker::Chunk { data: vec![7; 100] },
            ToWorker::State { total: 5, data: b"state".into() },
            ToWorker::StoreFailed { text: "the disk is full".into() },
        ];
        survive(&orders, ToWorker::encode, ToWorker::decode);
    }

    #[test]
    fn answers_survive_encoding_and_damage_is_noticed() {
        let messages = [
            FromWorker::Paused { frames: 99 },
            FromWorker::Resumed {},
            FromWorker::Detached {},
            FromWorker::Captured { bytes: 1 << 35, changed: 1 << 21, sharing: vec![1, 2] },
            FromWorker::Progress { done: 1, total: 2, written: 3 },
            FromWorker::Written { part: b"{}".into() },
            FromWorker::Restored { frames: 99, moved: vec![0; 4] },
            FromWorker::OutOfDeviceMemory { text: "no room on the device".into() },
            FromWorker::Failed { text: "stream 3 waits for a value that is never written".into() },
            FromWorker::Attached {},
            FromWorker::Unwritten { text: "no free space for the image".into() },
            FromWorker::Prepared {},
            FromWorker::Reexec { devices: "GPU-1,GPU-0".into() },
            FromWorker::Suspended {},
            FromWorker::Refilled {},
            FromWorker::ProcessSaved { part: b"{}".into() },
            FromWorker::ProcessResumed {},
            FromWorker::Ended {},
            FromWorker::Revived {},
            FromWorker::Has { hashes: vec![0xab; 2 * HASH_BYTES] },
            FromWorker::Put { data: vec![9; 64] },
            FromWorker::PutState { name: "rank-0.journal".into(), data: vec![1, 2, 3], last: 1 },
            FromWorker::Get { hash: vec![0xcd; HASH_BYTES] },
            FromWorker::GetState { name: "rank-0.journal".into(), offset: 1 << 20 },
        ];
        survive(&messages, FromWorker::encode, FromWorker::decode);
    }

    #[test]
    fn moved_variables_survive_encoding() {
        let moved = |name: &str| MovedVariable { name: name.to_owned(), address: 0x7f00_0000_1000, bytes: 64 };
        let entries = vec![moved("library 3: variable table"), moved("")];
        let bytes = MovedVariable::encode(&entries);
        assert_eq!(MovedVariable::decode(&bytes).unwrap(), entries);
        assert!(MovedVariable::decode(&bytes[..bytes.len() - 1]).is_err());
        assert_eq!(MovedVariable::decode(&MovedVariable::encode(&[])).unwrap(), []);
    }

    #[test]
    fn a_chunk_of_the_full_size_fits_and_a_larger_one_does_not() {
        assert!(FromWorker::Put { data: vec![0; 2 << 20] }.encode().is_ok());
        let larger = FromWorker::Put { data: vec![0; MAX_COMPANION_MESSAGE_BYTES] };
        assert!(matches!(larger.encode(), Err(EnvelopeError::TooLarge { .. })));
    }
}

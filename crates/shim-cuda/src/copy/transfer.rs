//! Bytes between the program's own memory and the GPU: inside frames when few, through the staging area when many, by
//! several threads when very many. One core moves them at a sixth of the link's rate. Over a network each thread has a
//! connection.
//!
//! A copy into the GPU has read the program's memory when it returns; a copy out has written it. The caller has checked both
//! ranges as a whole, so only a failure of the session can end a copy in the middle; it is returned.
#![expect(unsafe_code, reason = "reads and writes memory of the program")]

use std::time::Duration;

use katydid_client::compression::{self, RECEIVING_POLICY, SENDING_POLICY};
use katydid_client::session::Batch;
use katydid_client::threads::{Helpers, processors};
use katydid_cuda_sys::CUresult;
use katydid_transport::compression::{CompressionMode, MIN_COMPRESSED_BYTES, Pace, unpack};
use katydid_transport::{OrderingRules, ReplyBuffer, STAGING_PIECE_BYTES, STAGING_PIECES, Staging, StagingPiece};
use katydid_wire::codec::Message;
use katydid_wire::message::{
    cuStreamSynchronize, kdCopyIn, kdCopyInPacked, kdCopyInStaged, kdCopyOut, kdCopyOutPacked, kdCopyOutStaged,
    message_stream,
};

use crate::process::session::{Shim, shim};
use crate::sync::stream;

/// Largest copy in, in bytes, that travels inside the ring even if there is a staging area: on an H200, releasing a piece
/// costs as much as copying so many bytes once more.
const MAX_INLINE_IN_BYTES: u64 = 128 << 10;
/// Largest copy out, in bytes, that travels inside the ring. A reply is copied four times on its way, and a piece of the
/// staging area once.
pub(crate) const MAX_INLINE_OUT_BYTES: u64 = 16 << 10;
/// Bytes of the count in front of a reply's data.
const REPLY_COUNT_BYTES: usize = 4;
/// Bytes of one frame on a stream link.
pub(crate) const BULK_FRAME_BYTES: u64 = 1 << 20;

/// The stream of a copy: wire ids of context and stream.
#[derive(Clone, Copy)]
pub(crate) struct StreamIds {
    pub(crate) context: u32,
    pub(crate) stream: u32,
}

/// The path of a copy.
pub(crate) enum TransferPath {
    /// Through pieces of the staging area.
    Staged(&'static Staging),
    /// Inside the frames of messages.
    Frames,
}

impl TransferPath {
    /// Returns the path for `size` bytes into the GPU, and the most threads that may copy. More threads than processors only
    /// help on a network.
    pub(crate) fn inwards(shim: &'static Shim, size: u64) -> (Self, usize) {
        match shim.session.staging() {
            Some(staging) if size > MAX_INLINE_IN_BYTES => (Self::Staged(staging), processors()),
            _ => (Self::Frames, shim.session.bulk_connections_for(size)),
        }
    }

    /// Returns the path for `size` bytes out of the GPU, and the most threads that may copy. Several threads ask for parts
    /// while the first part is on its way: a link carries many replies at a time, each over a connection of its own if there
    /// are several.
    pub(crate) fn outwards(shim: &'static Shim, size: u64) -> (Self, usize) {
        match shim.session.staging() {
            Some(staging) if size > MAX_INLINE_OUT_BYTES => (Self::Staged(staging), processors()),
            _ => (Self::Frames, askers(shim, size)),
        }
    }

    /// Most bytes of a part.
    pub(crate) fn most(&self) -> u64 {
        match self {
            Self::Staged(_) => STAGING_PIECE_BYTES as u64,
            Self::Frames => BULK_FRAME_BYTES,
        }
    }
}

/// Returns how many threads may ask for `size` bytes in frames.
pub(crate) fn askers(shim: &Shim, size: u64) -> usize {
    match shim.session.bulk_connections_for(size) {
        0 => processors(),
        lanes => lanes,
    }
}

/// Fills a staging piece for the worker. Returns its number, and the offset of its first byte in the area.
///
/// # Errors
///
/// The code of a session that has ended.
pub(crate) fn fill(
    shim: &Shim,
    staging: &Staging,
    size: u64,
    copy: impl FnOnce(*mut u8),
) -> Result<(u32, u64), CUresult> {
    let failed = |error| shim.session.fail("a copy", &error);
    let piece = staging.take(size as usize).map_err(failed)?;
    staging.with(piece, copy).map_err(failed)?;
    Ok((piece.number(), u64::from(piece.number()) * STAGING_PIECE_BYTES as u64))
}

/// Has the worker fill a piece from the offset that `call` gets, then reads it.
///
/// # Errors
///
/// The session's end; the error of `call`.
pub(crate) fn drain(
    shim: &Shim,
    staging: &Staging,
    size: u64,
    call: impl FnOnce(u64) -> Result<(), CUresult>,
    copy: impl FnOnce(*mut u8),
) -> Result<(), CUresult> {
    let failed = |error| shim.session.fail("a copy", &error);
    let piece = staging.take(size as usize).map_err(failed)?;
    let _given_back = PieceGuard { staging, piece };
    call(u64::from(piece.number()) * STAGING_PIECE_BYTES as u64)?;
    staging.with(piece, copy).map_err(failed)
}

/// Copies from the program's memory to the GPU.
///
/// # Safety
///
/// `source` is valid for reading `size` bytes.
pub(crate) unsafe fn copy_in(ids: StreamIds, target: u64, source: *const u8, size: u64) -> Result<(), CUresult> {
    let (shim, source) = (shim()?, ProgramMemory(source));
    let (path, threads) = TransferPath::inwards(shim, size);
    shared_out(shim, ids, (Direction::In, size), (path.most(), threads), &|at, length| {
        let (destination, stream) = (target + at, ids.stream);
        if let TransferPath::Staged(staging) = path {
            // SAFETY: inside the source, by the contract; the piece was taken, so no other thread writes it, and has room
            // for `length` bytes, which are at most its size.
            let copy = |start: *mut u8| unsafe { start.copy_from_nonoverlapping(source.at(at), length as usize) };
            let (piece, offset) = fill(shim, staging, length, copy)?;
            let message = kdCopyInStaged { destination, stream, offset, size: length as u32, piece };
            return shim.session.enqueue(ids.context, &message);
        }
        // SAFETY: inside the source, by the contract.
        let data = unsafe { std::slice::from_raw_parts(source.at(at), length as usize) };
        send(shim, ids, destination, data)
    })
}

/// Sends bytes for the GPU inside a frame, compressed where they arrive sooner so.
fn send(shim: &Shim, ids: StreamIds, destination: u64, data: &[u8]) -> Result<(), CUresult> {
    let (context, stream) = (ids.context, ids.stream);
    let plain = kdCopyIn { destination, stream, data };
    if !may_pack(shim, data.len()) {
        return shim.session.enqueue(context, &plain);
    }
    let packed = RECEIVING_POLICY.pack(compression::compression_mode(), data);
    RECEIVING_POLICY.begin();
    let went = match &packed {
        Some(packed) => {
            let message = kdCopyInPacked { destination, stream, size: data.len() as u32, data: packed };
            shim.session.enqueue(context, &message)
        }
        None => shim.session.enqueue(context, &plain),
    };
    RECEIVING_POLICY.end(data.len(), packed.map_or(data.len(), |packed| packed.len()), Duration::ZERO);
    went
}

/// Returns whether this many bytes may be compressed: never on a link with shared memory.
fn may_pack(shim: &Shim, bytes: usize) -> bool {
    bytes >= MIN_COMPRESSED_BYTES
        && compression::compression_mode() != CompressionMode::Off
        && shim.session.staging().is_none()
}

/// Copies from the GPU to the program's memory, and waits for it.
///
/// # Safety
///
/// `target` is valid for writing `size` bytes.
pub(crate) unsafe fn copy_out(ids: StreamIds, target: *mut u8, source: u64, size: u64) -> Result<(), CUresult> {
    let (shim, target) = (shim()?, ProgramMemory(target));
    let (path, threads) = TransferPath::outwards(shim, size);
    shared_out(shim, ids, (Direction::Out, size), (path.most(), threads), &|at, length| {
        let (source, size, stream) = (source + at, length as u32, ids.stream);
        let to = target.at(at).cast_mut();
        if let TransferPath::Staged(staging) = path {
            let message = |offset| kdCopyOutStaged { source, size, stream, offset };
            let call = |offset| shim.session.call(ids.context, &message(offset)).map(drop);
            // SAFETY: inside the target, by the contract; the worker has written `length` bytes of this piece.
            let copy = |start: *mut u8| unsafe { start.copy_to_nonoverlapping(to, length as usize) };
            return drain(shim, staging, length, call, copy);
        }
        // SAFETY: inside the target, by the contract.
        unsafe { copy_out_inline(shim, ids, to, source, size) }
    })
}

/// # Safety
///
/// `target` is valid for writing `size` bytes.
unsafe fn copy_out_inline(
    shim: &Shim,
    ids: StreamIds,
    target: *mut u8,
    source: u64,
    size: u32,
) -> Result<(), CUresult> {
    if !may_pack(shim, size as usize) {
        // SAFETY: as this function says.
        return unsafe { copy_out_plain(shim, ids, target, source, size) };
    }
    let Some(pace) = SENDING_POLICY.requested_pace(compression::compression_mode()) else {
        // SAFETY: as this function says.
        return unsafe { copy_out_plain(shim, ids, target, source, size) };
    };
    let message = kdCopyOutPacked { source, size, stream: ids.stream, pace: pace.0 };
    // SAFETY: as this function says.
    unsafe { copy_out_packed(shim, ids, target, &message) }
}

/// # Safety
///
/// `target` is valid for writing `size` bytes.
unsafe fn copy_out_plain(shim: &Shim, ids: StreamIds, target: *mut u8, source: u64, size: u32) -> Result<(), CUresult> {
    let message = kdCopyOut { source, size, stream: ids.stream };
    // SAFETY: writable, by the contract; if the program touches the target of a running copy, the race is its own.
    let buffer = unsafe { ReplyBuffer::new(target, size as usize, REPLY_COUNT_BYTES) };
    shim.session.call_into(ids.context, &message, buffer)
}

/// Asks for bytes that may come compressed, and records the time without the worker's own.
///
/// # Safety
///
/// `target` is valid for writing as many bytes as the message asks for.
unsafe fn copy_out_packed(
    shim: &Shim,
    ids: StreamIds,
    target: *mut u8,
    message: &kdCopyOutPacked,
) -> Result<(), CUresult> {
    let size = message.size as usize;
    SENDING_POLICY.begin();
    let reply = shim.session.call(ids.context, message);
    let facts = reply.as_ref().map(|reply| (reply.data.len(), Duration::from_micros(reply.waited.into())));
    let (sent, waited) = facts.unwrap_or_default();
    SENDING_POLICY.end(size, sent, waited);
    let reply = reply?;
    if reply.packerPace != 0 {
        SENDING_POLICY.packs(Pace(reply.packerPace));
    }
    let mut whole = Vec::new();
    let bytes = if reply.isPacked != 0 {
        whole.resize(size, 0);
        unpack(&reply.data, &mut whole).map_err(|_| shim.session.broken(kdCopyOutPacked::NAME))?;
        &whole
    } else {
        &reply.data
    };
    if bytes.len() != size {
        return Err(shim.session.broken(kdCopyOutPacked::NAME));
    }
    // SAFETY: writable, by the contract; the source is the shim's own memory.
    unsafe { target.copy_from_nonoverlapping(bytes.as_ptr(), size) };
    Ok(())
}

/// Releases a staging piece however the copy ends.
struct PieceGuard<'a> {
    staging: &'a Staging,
    piece: StagingPiece,
}

impl Drop for PieceGuard<'_> {
    fn drop(&mut self) {
        self.staging.release(self.piece);
    }
}

/// Memory of the program; several threads copy different parts of it.
#[derive(Clone, Copy)]
pub(crate) struct ProgramMemory(pub(crate) *const u8);

// SAFETY: it is an address; the code that reads through it says why that is sound.
unsafe impl Sync for ProgramMemory {}

impl ProgramMemory {
    /// Returns the address `offset` bytes further on.
    pub(crate) fn at(self, offset: u64) -> *const u8 {
        self.0.wrapping_add(offset as usize)
    }
}

/// A step of a copy, by offset and length.
type CopyStep<'a> = &'a (dyn Fn(u64, u64) -> Result<(), CUresult> + Sync);

/// Returns how many helper threads a copy is worth. Together with the calling thread they are at most `threads`.
pub(crate) fn helpers(ids: StreamIds, size: u64, threads: usize) -> usize {
    // A thread's own default stream means, on the wire too, that of the thread that names it.
    Helpers::worth(size, if stream::is_of_thread(ids.stream) { 1 } else { threads })
}

/// The direction of a copy, into the GPU or out of it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    In,
    Out,
}

/// Runs `copy` with the batch that its parts belong to. The GPU sees all parts or none: work that other threads queue in
/// streams in order with this one comes before or after all of them.
///
/// Those threads wait meanwhile. So nothing inside waits for earlier work of the stream: not for replies, and not for
/// pieces, which may be too few for a copy into the GPU.
pub(crate) fn in_one_piece<T>(
    shim: &Shim,
    ids: StreamIds,
    (direction, size): (Direction, u64),
    copy: impl FnOnce(&Batch<'_, CUresult>) -> Result<T, CUresult>,
) -> Result<T, CUresult> {
    let waits = direction == Direction::Out || size > (STAGING_PIECES * STAGING_PIECE_BYTES) as u64;
    if waits && shim.session.is_multithreaded() {
        shim.session.call(ids.context, &cuStreamSynchronize { hStream: ids.stream })?;
    }
    let rules = OrderingRules { stream: message_stream, are_ordered: stream::are_in_order };
    copy(&shim.session.batch((ids.context, ids.stream), rules)?)
}

/// Runs `step` for each part of a copy, none larger than `most` bytes: by this thread and as many others as pay, up to
/// `threads` in all. Parts run in any order.
fn shared_out(
    shim: &Shim,
    ids: StreamIds,
    (direction, size): (Direction, u64),
    (most, threads): (u64, usize),
    step: CopyStep<'_>,
) -> Result<(), CUresult> {
    let helpers = helpers(ids, size, threads);
    if helpers == 0 && size <= most {
        return step(0, size);
    }
    in_one_piece(shim, ids, (direction, size), |batch| {
        let carried = |at, length| batch.run(|| step(at, length));
        Helpers::take(helpers).share_out((size, most), CUresult::ERROR_UNKNOWN, &carried)
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    fn shared(stream: u32, size: u64, step: CopyStep<'_>) -> Result<(), CUresult> {
        let helpers = helpers(StreamIds { context: 1, stream }, size, processors());
        Helpers::take(helpers).share_out((size, STAGING_PIECE_BYTES as u64), CUresult::ERROR_UNKNOWN, step)
    }

    #[test]
    fn parts_cover_everything_once_by_any_thread() {
        for (size, stream) in [(1, 0), ((3 << 20) + 5, 0), ((3 << 20) + 5, 2), (9 * STAGING_PIECE_BYTES as u64 + 1, 7)]
        {
            let pieces = Mutex::new(Vec::new());
            shared(stream, size, &|at, length| {
                pieces.lock().unwrap().push((at, length));
                Ok(())
            })
            .unwrap();
            let mut pieces = pieces.into_inner().unwrap();
            pieces.sort_unstable();
            let end = pieces.iter().fold(0, |end, &(at, length)| {
                assert!(at == end && length <= STAGING_PIECE_BYTES as u64);
                at + length
            });
            assert_eq!(end, size);
        }
        assert_eq!(shared(0, 0, &|_, _| Err(CUresult::ERROR_UNKNOWN)), Ok(()));
    }

    #[test]
    fn a_failure_of_any_part_is_that_of_the_copy() {
        let most = 4 * STAGING_PIECE_BYTES as u64;
        let failed = shared(0, most, &|at, length| {
            if at + length == most { Err(CUresult::ERROR_UNKNOWN) } else { Ok(()) }
        });
        assert_eq!(failed, Err(CUresult::ERROR_UNKNOWN));
    }
}

//! Copies through the staging area that program and worker share. The driver reads from its pieces and writes to them. So bytes
//! are copied once on either side, and both sides copy at the same time.
//!
//! Such a copy is split into parts, in in-order queues. The last part's event is then that of the whole, and no command of
//! another thread comes between the parts ([`PendingCommand::alone`]). A command with recorded times is not split
//! ([`crate::transfers::blocks`]).
#![expect(unsafe_code, reason = "reads and writes the memory that programs name")]

use std::ops::RangeInclusive;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use katydid_client::threads::{Helpers, processors};
use katydid_opencl_sys::Code;
use katydid_transport::{PIECE_POLL_INTERVAL, STAGING_PIECE_BYTES, Staging, StagingPiece};
use katydid_wire::PAGE_BYTES;
use katydid_wire::codec::Field as _;
use katydid_wire::opencl::message::{kdclFetch, kdclFlush, kdclRead, kdclWrite};
use katydid_wire::opencl::transfer_extent::{BUFFER_RUN, TransferExtent};
use katydid_wire::opencl::{STAGED_IN_PIECE, fetch_mode};

use crate::host::pending_reads::PENDING_READS;
use crate::host::rows::{Direction, Rows};
use crate::host::transfer_blocks::MAX_IN_FRAME_BYTES;
use crate::objects::pending_command::PendingCommand;
use crate::process::session;
use crate::transfers::send;
use crate::transfers::transfer::Transfer;

/// Number of parts of a copy, so that both sides work at once, unless parts would be smaller than [`MAX_IN_FRAME_BYTES`].
const PIECES_PER_COPY: usize = 8;
/// Bytes of a part of a write. Writes wait for no part, so small parts cost little, and the device starts after the first.
const WRITE_PIECE_BYTES: RangeInclusive<usize> = MAX_IN_FRAME_BYTES..=2 << 20;
/// Bytes of a part of a read. One part is copied while others arrive. But each takes a wait, during which a core copies half a
/// MiB.
const READ_PART_BYTES: RangeInclusive<usize> = 1 << 20..=2 << 20;
/// Most parts of a read in flight, besides those that threads copy.
const MAX_PIECES_IN_FLIGHT: usize = 3;
/// How long a write waits for a piece before it is sent another way.
const PIECE_TIMEOUT: Duration = Duration::from_millis(50);

/// Returns the staging area, if a transfer may use it.
fn staging(transfer: &Transfer, command: &PendingCommand) -> Result<Option<&'static Staging>, Code> {
    let queue = &command.queue;
    let can = transfer.rows.len() > MAX_IN_FRAME_BYTES && queue.is_in_order();
    let is_whole = command.event() == 0 || !queue.is_profiled();
    Ok(session::staging()?.filter(|_| can && is_whole))
}

/// Returns the bytes of each part but the last, within the bounds.
fn part(size: usize, bounds: &RangeInclusive<usize>) -> usize {
    (size / PIECES_PER_COPY).next_multiple_of(PAGE_BYTES).clamp(*bounds.start(), *bounds.end())
}

/// Splits a transfer into parts of about `each` bytes, in order, none larger than a piece; `None` if a row is larger than that.
fn parts(transfer: &Transfer, each: usize) -> Option<Vec<Transfer>> {
    let areas = if transfer.form == BUFFER_RUN {
        stretches(&transfer.extent, &transfer.rows, each)
    } else {
        boxes(&transfer.extent, &transfer.rows, each)?
    };
    Some(areas.into_iter().map(|(extent, rows)| Transfer { extent, rows, ..transfer.clone() }).collect())
}

/// Splits a run into contiguous stretches.
fn stretches(extent: &TransferExtent, rows: &Rows, each: usize) -> Vec<(TransferExtent, Rows)> {
    let stretch = |at: usize| {
        let length = each.min(rows.len() - at);
        (TransferExtent::run(extent.origin[0] + at as u64, length as u64), Rows::run(rows.start + at, length))
    };
    (0..rows.len()).step_by(each).map(stretch).collect()
}

/// Splits a box into whole slices, or into rows of one slice.
fn boxes(extent: &TransferExtent, rows: &Rows, each: usize) -> Option<Vec<(TransferExtent, Rows)>> {
    let slice = rows.width * rows.rows;
    let (most_rows, most_slices) =
        if slice <= STAGING_PIECE_BYTES { (rows.rows, (each / slice).max(1)) } else { ((each / rows.width).max(1), 1) };
    let offsets =
        (0..rows.slices).step_by(most_slices).flat_map(|z| (0..rows.rows).step_by(most_rows).map(move |y| (y, z)));
    let part = |(y, z): (usize, usize)| {
        let (high, deep) = (most_rows.min(rows.rows - y), most_slices.min(rows.slices - z));
        let start = rows.start + z * rows.slice + y * rows.row;
        let ([x, row, plane], width) = (extent.origin, extent.region[0]);
        let origin = [x, row + y as u64, plane + z as u64];
        let region = [width, high as u64, deep as u64];
        (TransferExtent { origin, region, ..*extent }, Rows { start, rows: high, slices: deep, ..*rows })
    };
    (rows.width <= STAGING_PIECE_BYTES).then(|| offsets.map(part).collect())
}

/// Enqueues a write in parts. Returns false if the caller must write in another way: no piece is free, or a command of another
/// thread could come between the parts.
///
/// # Safety
///
/// The rows are readable.
pub(crate) unsafe fn write(transfer: &Transfer, command: &PendingCommand, blocking: bool) -> Result<bool, Code> {
    let Some(staging) = staging(transfer, command)? else { return Ok(false) };
    let Some(parts) = parts(transfer, part(transfer.rows.len(), &WRITE_PIECE_BYTES)) else { return Ok(false) };
    // SAFETY: guaranteed by the caller.
    command.alone(|| unsafe { write_parts(staging, parts, command, blocking) }).unwrap_or(Ok(false))
}

/// Writes the first part, then the middle ones on several threads, and finally the last one, which has the event: one core copies
/// slower than a device. Parts without a piece are sent another way. Returns false if nothing was sent because even the first
/// part found no piece.
///
/// # Safety
///
/// The rows of the parts are readable.
unsafe fn write_parts(
    staging: &Staging,
    mut parts: Vec<Transfer>,
    command: &PendingCommand,
    blocking: bool,
) -> Result<bool, Code> {
    let piece_for = |part: &Transfer| take(staging, command, (part.rows.len(), blocking));
    // SAFETY: guaranteed by the caller.
    let put = |piece, part: &Transfer, ends| unsafe { put(staging, (piece, part), command, ends) };
    let last = parts.len() - 1;
    let Some(piece) = piece_for(&parts[0])? else { return Ok(false) };
    put(piece, &parts[0], (true, last == 0))?;
    // The range of unclaimed parts. It ends before the last part, or at a part that found no piece.
    let open = Mutex::new(1..last);
    let claim = || -> Result<Option<(StagingPiece, &Transfer)>, Code> {
        let mut open = open.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(part) = parts.get(open.clone()).and_then(<[Transfer]>::first) else { return Ok(None) };
        let piece = piece_for(part)?;
        if piece.is_some() {
            open.start += 1
        } else {
            open.end = open.start
        }
        Ok(piece.map(|piece| (piece, part)))
    };
    let write_open = || {
        while let Some((piece, part)) = claim()? {
            put(piece, part, (false, false))?;
        }
        Ok(())
    };
    let between: usize = parts.get(1..last).unwrap_or_default().iter().map(|part| part.rows.len()).sum();
    let helpers = Helpers::take(Helpers::worth(between as u64, processors()));
    helpers.work(Code::OUT_OF_RESOURCES, &write_open)?;
    let next = open.into_inner().unwrap_or_else(PoisonError::into_inner).start;
    match &parts[next..] {
        [] => return Ok(true),
        [one] => {
            if let Some(piece) = piece_for(one)? {
                return put(piece, one, (false, true)).map(|()| true);
            }
        }
        _ => {}
    }
    // SAFETY: guaranteed by the caller.
    unsafe { send_last_parts(joined(parts.split_off(next)), command).map(|()| true) }
}

/// Writes one part through its piece; the flags say whether it is the first and the last of its command.
///
/// # Safety
///
/// Its rows are readable.
unsafe fn put(
    staging: &Staging,
    (piece, part): (StagingPiece, &Transfer),
    command: &PendingCommand,
    (is_first, is_last): (bool, bool),
) -> Result<(), Code> {
    // SAFETY: the rows are readable by the contract; the piece was taken, and has room for a part.
    let copied = staging.with(piece, |to| unsafe { part.rows.copy(Direction::Out, to.expose_provenance()) });
    copied.map_err(|error| session::fail("a copy", &error))?;
    let waits = if is_first { part.arguments(command) } else { part.alone() };
    let (event, blocking) = if is_last { (command.event(), command.blocks().into()) } else { (0, 0) };
    let (queue, memory, staged) = (command.queue(), part.memory.base.id, STAGED_IN_PIECE + piece.number());
    let message = kdclWrite { queue, event, memory, form: part.form, staged, blocking, waits: &waits };
    // The first part shows errors; an event must exist in the worker before the program has it.
    if (!is_first && event == 0) || part.cannot_be_refused(command) {
        return session::enqueue(&message);
    }
    session::call(&message)?;
    part.accepted(command);
    Ok(())
}

/// Sends the last parts of a write whose other parts were sent already.
///
/// # Safety
///
/// Their rows are readable.
unsafe fn send_last_parts(parts: Vec<Transfer>, command: &PendingCommand) -> Result<(), Code> {
    for (number, part) in parts.iter().enumerate() {
        // SAFETY: guaranteed by the caller.
        unsafe { send::send(part, command, (false, number + 1 == parts.len()))? };
    }
    Ok(())
}

/// Joins consecutive parts; runs become one.
fn joined(parts: Vec<Transfer>) -> Vec<Transfer> {
    match &parts[..] {
        [first, .., last] if first.form == BUFFER_RUN => {
            let length = last.rows.start + last.rows.len() - first.rows.start;
            let extent = TransferExtent::run(first.extent.origin[0], length as u64);
            vec![Transfer { extent, rows: Rows::run(first.rows.start, length), ..first.clone() }]
        }
        _ => parts,
    }
}

/// A part of a read in flight.
struct ReadPart {
    piece: StagingPiece,
    read_number: u64,
    rows: Rows,
}

/// The pieces of one read: taken before it begins, since it must not wait for one halfway.
struct ReadPieces<'a> {
    staging: &'a Staging,
    pieces: Vec<StagingPiece>,
}

impl<'a> ReadPieces<'a> {
    /// Takes at most `most` pieces of `each` bytes.
    fn take(staging: &'a Staging, most: usize, each: usize) -> Self {
        Self { staging, pieces: (0..most).map_while(|_| staging.try_take(each)).collect() }
    }
}

impl Drop for ReadPieces<'_> {
    fn drop(&mut self) {
        self.pieces.iter().for_each(|piece| self.staging.release(*piece));
    }
}

/// Reads and waits. Returns false if the transfer may not use the area, no piece is free, or a command of another thread could
/// come between the parts.
///
/// The read waits for the first part before it begins others. From then on only the driver's copies take time, so other threads
/// do not wait for long ([`PendingCommand::alone`]).
///
/// # Safety
///
/// The rows are writable.
pub(crate) unsafe fn read(transfer: &Transfer, command: &PendingCommand) -> Result<bool, Code> {
    let Some(staging) = staging(transfer, command)? else { return Ok(false) };
    let size = transfer.rows.len();
    let each = part(size, &READ_PART_BYTES);
    let Some(parts) = parts(transfer, each) else { return Ok(false) };
    let longest = parts.iter().map(|part| part.rows.len()).max().unwrap_or(each);
    let helpers = Helpers::take(Helpers::worth(size as u64, processors()));
    let pieces = ReadPieces::take(staging, MAX_PIECES_IN_FLIGHT + helpers.count(), longest);
    let (Some((first, later_parts)), Some(piece)) = (parts.split_first(), pieces.pieces.first()) else {
        return Ok(false);
    };
    let read_part = begin(*piece, first, command, (true, later_parts.is_empty()))?;
    // SAFETY: guaranteed by the caller.
    unsafe { fetch_part(staging, &read_part)? };
    if later_parts.is_empty() {
        return Ok(true);
    }
    // SAFETY: guaranteed by the caller.
    let read = command.alone(|| unsafe { read_after_first(staging, later_parts, command, (&pieces, &helpers)) });
    read.map_or(Ok(false), |read| read.map(|()| true))
}

/// Reads all parts but the first. This thread begins them in order, and others copy what has arrived: one core copies slower than
/// a device reads.
///
/// # Safety
///
/// Their rows are writable.
unsafe fn read_after_first(
    staging: &Staging,
    parts: &[Transfer],
    command: &PendingCommand,
    (pieces, helpers): (&ReadPieces<'_>, &Helpers),
) -> Result<(), Code> {
    let ((begin_one, read_parts), (give, free)) = (channel(), channel());
    for piece in &pieces.pieces {
        let _ = give.send(*piece);
    }
    let read_parts = Mutex::new(read_parts);
    // Fetches all parts. After an error it still waits for the others, since drivers write to their pieces.
    let fetch_all = || {
        let mut outcome = Ok(());
        while let Some(part) = next(&read_parts) {
            // SAFETY: guaranteed by the caller.
            outcome = outcome.and(unsafe { fetch_part(staging, &part) });
            let _ = give.send(part.piece);
        }
        outcome
    };
    thread::scope(|scope| {
        let help = helpers.start(scope, fetch_all);
        let mut outcome = Ok(());
        for (number, part) in parts.iter().enumerate() {
            if help.is_empty() && outcome.is_ok() {
                // SAFETY: guaranteed by the caller.
                outcome = unsafe { fetch_if_full(staging, (&read_parts, &free, &give)) };
            }
            let is_last = number + 1 == parts.len();
            let piece = outcome.and_then(|()| free.recv().map_err(|_| Code::OUT_OF_RESOURCES));
            match piece.and_then(|piece| begin(piece, part, command, (false, is_last))) {
                Ok(part) => drop(begin_one.send(part)),
                Err(code) => {
                    outcome = Err(code);
                    break;
                }
            }
        }
        drop(begin_one);
        if help.is_empty() {
            outcome = outcome.and(fetch_all());
        }
        let lost = Err(Code::OUT_OF_RESOURCES);
        help.into_iter().fold(outcome, |so_far, thread| so_far.and(thread.join().unwrap_or(lost)))
    })
}

/// Returns the next part that was begun; `None` when there are no more.
fn next(read_parts: &Mutex<Receiver<ReadPart>>) -> Option<ReadPart> {
    read_parts.lock().unwrap_or_else(PoisonError::into_inner).recv().ok()
}

/// Fetches the oldest part if no piece is free; for a thread that works without helpers.
///
/// # Safety
///
/// The rows of parts are writable.
unsafe fn fetch_if_full(
    staging: &Staging,
    (read_parts, free, give): (&Mutex<Receiver<ReadPart>>, &Receiver<StagingPiece>, &Sender<StagingPiece>),
) -> Result<(), Code> {
    if let Ok(piece) = free.try_recv() {
        let _ = give.send(piece);
        return Ok(());
    }
    let Some(part) = next(read_parts) else { return Ok(()) };
    // SAFETY: guaranteed by the caller.
    let outcome = unsafe { fetch_part(staging, &part) };
    let _ = give.send(part.piece);
    outcome
}

/// Begins to read a part; the flags say whether it is the first and the last.
fn begin(
    piece: StagingPiece,
    part: &Transfer,
    command: &PendingCommand,
    (is_first, is_last): (bool, bool),
) -> Result<ReadPart, Code> {
    let read_part = ReadPart { piece, read_number: PENDING_READS.number(), rows: part.rows };
    let mut waits = if is_first { part.arguments(command) } else { part.alone() };
    (piece.number() + 1).put(&mut waits);
    let event = if is_last { command.event() } else { 0 };
    let (queue, memory, read_number) = (command.queue(), part.memory.base.id, read_part.read_number);
    let message = kdclRead { queue, event, memory, form: part.form, read_number, waits: &waits };
    if is_first || event != 0 {
        session::call(&message).map(drop)?
    } else {
        session::enqueue(&message)?
    }
    Ok(read_part)
}

/// Waits for a part, and copies it to its target.
///
/// # Safety
///
/// The rows are writable.
unsafe fn fetch_part(staging: &Staging, part: &ReadPart) -> Result<(), Code> {
    let reply =
        session::call(&kdclFetch { read_number: part.read_number, offset: 0, size: 0, how: fetch_mode::FETCH_AT_END })?;
    if reply.state != 0 {
        return Err(Code::EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST);
    }
    // SAFETY: the rows are writable by the contract; the command that wrote the piece has ended.
    let copied = staging.with(part.piece, |from| unsafe { part.rows.copy(Direction::In, from.expose_provenance()) });
    copied.map_err(|error| session::fail("a copy", &error))
}

/// Returns a free piece for a write; `None` if the program does not wait, or others hold all pieces. Those may wait for what this
/// thread does later, so the wait is short.
fn take(
    staging: &Staging,
    command: &PendingCommand,
    (length, waits): (usize, bool),
) -> Result<Option<StagingPiece>, Code> {
    let mut piece = staging.try_take(length);
    if piece.is_none() && waits {
        // Starts commands that the queue holds back.
        session::enqueue(&kdclFlush { queue: command.queue() })?;
        let start = Instant::now();
        while piece.is_none() && start.elapsed() < PIECE_TIMEOUT {
            thread::sleep(PIECE_POLL_INTERVAL);
            piece = staging.try_take(length);
        }
    }
    Ok(piece)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_neither_too_small_nor_larger_than_a_piece() {
        assert_eq!(
            [MAX_IN_FRAME_BYTES + 1, 2 << 20, 1 << 30].map(|size| part(size, &WRITE_PIECE_BYTES)),
            [MAX_IN_FRAME_BYTES, 256 << 10, 2 << 20]
        );
        assert_eq!([1 << 20, 12 << 20, 1 << 30].map(|size| part(size, &READ_PART_BYTES)), [1 << 20, 3 << 19, 2 << 20]);
        assert!(part((3 << 20) + 17, &WRITE_PIECE_BYTES).is_multiple_of(PAGE_BYTES));
    }

    /// Returns the number of bytes in the parts, and checks that extents and rows have the same lengths.
    fn covered(parts: &[(TransferExtent, Rows)], element: u64) -> usize {
        parts.iter().for_each(|(extent, rows)| assert_eq!(extent.bytes(element), Some(rows.len() as u64)));
        parts.iter().map(|(_, rows)| rows.len()).sum()
    }

    #[test]
    fn a_run_is_cut_into_stretches() {
        let parts = stretches(&TransferExtent::run(100, 1000), &Rows::run(5000, 1000), 384);
        assert_eq!(covered(&parts, 1), 1000);
        let starts: Vec<_> = parts.iter().map(|(extent, rows)| (extent.origin[0], rows.start)).collect();
        assert_eq!(starts, [(100, 5000), (484, 5384), (868, 5768)]);
    }

    #[test]
    fn a_box_is_cut_between_slices_or_between_rows() {
        let extent = TransferExtent { origin: [1, 2, 3], region: [64, 10, 5], row: 70, slice: 700 };
        let rows = Rows { start: 4096, width: 64, rows: 10, slices: 5, row: 100, slice: 2000 };
        let parts = boxes(&extent, &rows, 1300).unwrap();
        assert_eq!((covered(&parts, 1), parts.len()), (3200, 3));
        assert_eq!((parts[1].0.origin, parts[1].0.region, parts[1].1.start), ([1, 2, 5], [64, 10, 2], 4096 + 4000));
        assert_eq!((parts[2].0.region, parts[2].0.row, parts[2].1.slices), ([64, 10, 1], 70, 1));
        // A slice that is larger than a piece; elements have 16 bytes.
        let (width, high) = (1 << 20, 9);
        let extent =
            TransferExtent { origin: [0, 1, 2], region: [width as u64 / 16, high as u64, 2], row: 3, slice: 0 };
        let rows = Rows { start: 0, width, rows: high, slices: 2, row: width, slice: width * high };
        let parts = boxes(&extent, &rows, STAGING_PIECE_BYTES).unwrap();
        assert_eq!((covered(&parts, 16), parts.len()), (2 * high * width, 6));
        assert_eq!((parts[4].0.origin, parts[4].1.start, parts[5].1.rows), ([0, 5, 3], 13 * width, 1));
        assert!(boxes(&extent, &Rows { width: STAGING_PIECE_BYTES + 1, ..rows }, STAGING_PIECE_BYTES).is_none());
    }
}

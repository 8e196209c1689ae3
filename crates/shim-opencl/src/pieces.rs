//! Copies through the staging area, where the program and its worker share one: the driver reads from its pieces and writes
//! to them, so bytes are copied once on either side, and both sides copy at the same time.
//!
//! Only runs of buffers in queues that keep their order travel so: the last part's event is then that of the whole. A command
//! whose times are kept is not cut into parts.
#![expect(unsafe_code, reason = "reads and writes the memory that programs name")]

use std::collections::VecDeque;
use std::thread;
use std::time::{Duration, Instant};

use katydid_opencl_sys::Code;
use katydid_transport::{PIECE, Piece, Staging};
use katydid_wire::codec::Field as _;
use katydid_wire::opencl::IN_PIECE;
use katydid_wire::opencl::extent::{Extent, RUN};
use katydid_wire::opencl::message::{kdclFlush, kdclLand, kdclRead, kdclWrite};

use crate::order::Order;
use crate::rows::Rows;
use crate::shim::{Shim, shim};
use crate::transfer::Transfer;

/// Up to this many bytes travel in frames.
const LEAST: usize = 128 << 10;
/// Parts that a copy is cut into, so that both sides are at work, as long as they are not smaller than [`LEAST`].
const PARTS: usize = 8;
/// Parts begin at pages.
const GRAIN: usize = 4096;
/// Parts of a read that are under way.
const UNDER_WAY: usize = 3;
/// How long a write waits for a piece before it travels in frames, and between two looks.
const PATIENCE: Duration = Duration::from_secs(1);
const NAP: Duration = Duration::from_micros(20);

/// The staging area, if a transfer may travel through it.
fn staging<'a>(shim: &'a Shim, transfer: &Transfer, order: &Order) -> Option<&'a Staging> {
    let queue = &order.queue;
    let can = transfer.form == RUN && transfer.rows.len() > LEAST && queue.is_in_order();
    let is_whole = order.event() == 0 || !queue.is_profiled();
    shim.link.staging().filter(|_| can && is_whole)
}

/// Bytes of each part but the last.
fn part(size: usize) -> usize {
    (size / PARTS).next_multiple_of(GRAIN).clamp(LEAST, PIECE)
}

/// Writes from the front, and tells how many bytes are on their way: all of them, or fewer where it finds no piece, or none at all.
///
/// # Safety
///
/// The rows are readable.
pub(crate) unsafe fn write(transfer: &Transfer, order: &Order, blocking: bool) -> Result<usize, Code> {
    let shim = shim()?;
    let Some(staging) = staging(shim, transfer, order) else { return Ok(0) };
    let size = transfer.rows.len();
    let each = part(size);
    for at in (0..size).step_by(each) {
        let length = each.min(size - at);
        let Some(piece) = take(shim, staging, order, (length, blocking))? else { return Ok(at) };
        let from = std::ptr::with_exposed_provenance::<u8>(transfer.rows.start + at);
        // SAFETY: inside the rows, which are readable by the contract; the piece was taken, and has room for a part.
        let copied = staging.with(piece, |to| unsafe { to.copy_from_nonoverlapping(from, length) });
        copied.map_err(|error| shim.link.fail("a copy", &error))?;
        let (is_first, is_last) = (at == 0, at + length == size);
        let one = cut(transfer, at, length);
        let waits = if is_first { one.arguments(order) } else { one.alone() };
        let event = if is_last { order.event() } else { 0 };
        let (queue, memory, staged) = (order.queue(), transfer.memory.base.id, IN_PIECE + piece.number());
        let message = kdclWrite { queue, event, memory, form: RUN, staged, waits: &waits };
        // The first says whether there is anything wrong; of the last one the program may have an event.
        if is_first || is_last { shim.link.call(&message).map(drop)? } else { shim.link.enqueue(&message)? }
    }
    Ok(size)
}

/// A part of a read that is under way.
struct Part {
    piece: Piece,
    landing: u64,
    at: usize,
    length: usize,
}

/// The pieces of one read: taken before it begins, since nobody may wait for one in the middle.
struct Pieces<'a> {
    staging: &'a Staging,
    all: Vec<Piece>,
    /// Those that no part uses.
    free: Vec<Piece>,
}

impl<'a> Pieces<'a> {
    /// Of so many bytes each.
    fn take(staging: &'a Staging, each: usize) -> Self {
        let all: Vec<Piece> = (0..UNDER_WAY).map_while(|_| staging.try_take(each)).collect();
        Self { staging, free: all.clone(), all }
    }
}

impl Drop for Pieces<'_> {
    fn drop(&mut self) {
        self.all.iter().for_each(|piece| self.staging.release(*piece));
    }
}

/// Reads and waits; false if it may not travel so, or no piece is free.
///
/// # Safety
///
/// The rows are writable.
pub(crate) unsafe fn read(transfer: &Transfer, order: &Order) -> Result<bool, Code> {
    let shim = shim()?;
    let Some(staging) = staging(shim, transfer, order) else { return Ok(false) };
    let size = transfer.rows.len();
    let each = part(size);
    let mut pieces = Pieces::take(staging, each);
    if pieces.all.is_empty() {
        return Ok(false);
    }
    let (mut under_way, mut outcome) = (VecDeque::new(), Ok(()));
    for at in (0..size).step_by(each) {
        if pieces.free.is_empty() {
            // SAFETY: handed on.
            outcome = unsafe { land(shim, &mut under_way, &mut pieces, transfer) };
        }
        let begun = outcome.and_then(|()| begin(shim, &mut pieces, transfer, order, (at, each.min(size - at))));
        match begun {
            Ok(part) => under_way.push_back(part),
            Err(code) => {
                outcome = Err(code);
                break;
            }
        }
    }
    // What is under way is waited for whatever happened: drivers write to its pieces.
    while !under_way.is_empty() {
        // SAFETY: handed on.
        outcome = outcome.and(unsafe { land(shim, &mut under_way, &mut pieces, transfer) });
    }
    outcome.map(|()| true)
}

/// Begins to read a part.
fn begin(
    shim: &Shim,
    pieces: &mut Pieces<'_>,
    transfer: &Transfer,
    order: &Order,
    (at, length): (usize, usize),
) -> Result<Part, Code> {
    let piece = pieces.free.pop().ok_or(Code::OUT_OF_RESOURCES)?;
    let part = Part { piece, landing: shim.landings.number(), at, length };
    let (is_first, is_last) = (at == 0, at + length == transfer.rows.len());
    let one = cut(transfer, at, length);
    let mut waits = if is_first { one.arguments(order) } else { one.alone() };
    (piece.number() + 1).put(&mut waits);
    let event = if is_last { order.event() } else { 0 };
    let (queue, memory, landing) = (order.queue(), transfer.memory.base.id, part.landing);
    let message = kdclRead { queue, event, memory, form: RUN, landing, waits: &waits };
    if is_first || is_last {
        shim.link.call(&message).map(drop)?
    } else {
        shim.link.enqueue(&message)?
    }
    Ok(part)
}

/// Waits for the oldest part, and copies it to its place.
///
/// # Safety
///
/// The rows are writable.
unsafe fn land(
    shim: &Shim,
    under_way: &mut VecDeque<Part>,
    pieces: &mut Pieces<'_>,
    transfer: &Transfer,
) -> Result<(), Code> {
    let Some(part) = under_way.pop_front() else { return Ok(()) };
    pieces.free.push(part.piece);
    let reply = shim.link.call(&kdclLand { landing: part.landing, offset: 0, size: 0, wait: 1 })?;
    if reply.state != 0 {
        return Err(Code::EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST);
    }
    let to = std::ptr::with_exposed_provenance_mut::<u8>(transfer.rows.start + part.at);
    // SAFETY: inside the rows, by the contract; the command that wrote the piece has ended.
    let copied = pieces.staging.with(part.piece, |from| unsafe { from.copy_to_nonoverlapping(to, part.length) });
    copied.map_err(|error| shim.link.fail("a copy", &error))
}

/// A part of a run.
fn cut(transfer: &Transfer, at: usize, length: usize) -> Transfer {
    let extent = Extent::run(transfer.extent.origin[0] + at as u64, length as u64);
    Transfer { rows: Rows::run(transfer.rows.start + at, length), extent, ..transfer.from(0) }
}

/// A free piece for a write; none where the program does not wait, or others keep them all. These may wait for what this
/// very thread is to do later, so nobody waits for them for long.
fn take(shim: &Shim, staging: &Staging, order: &Order, (length, waits): (usize, bool)) -> Result<Option<Piece>, Code> {
    let mut piece = staging.try_take(length);
    if piece.is_none() && waits {
        // What the queue holds back is begun.
        shim.link.enqueue(&kdclFlush { queue: order.queue() })?;
        let begun = Instant::now();
        while piece.is_none() && begun.elapsed() < PATIENCE {
            thread::sleep(NAP);
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
        assert_eq!([part(LEAST + 1), part(2 << 20), part(1 << 30)], [LEAST, 256 << 10, PIECE]);
        assert!(part((3 << 20) + 17).is_multiple_of(GRAIN));
    }
}

//! Copies of buffers in the worker's zero-copy area, which the program maps. The queue only orders the copy. Threads of the
//! program copy the bytes once, as a driver in its own process would.
//!
//! No command of the queue may come between the copy's command and the end of the copy. Natively none can, as they come after it;
//! so here no other thread enqueues anything meanwhile ([`PendingCommand::alone`]). If one has since the copy began, or the bytes
//! have moved, they are copied again in another way.
#![expect(unsafe_code, reason = "copies between memory that programs name and the worker's")]

use std::sync::atomic::Ordering;

use katydid_opencl_sys::Code;
use katydid_transport::Staging;
use katydid_wire::opencl::NO_ZERO_COPY_OFFSET;
use katydid_wire::opencl::message::kdclZeroCopy;
use katydid_wire::opencl::transfer_extent::BUFFER_RUN;

use crate::host::rows::Direction;
use crate::objects::pending_command::PendingCommand;
use crate::process::session;
use crate::transfers::transfer::Transfer;

/// The largest copy, in bytes, that goes in a reply instead: it takes no longer for so few.
const MAX_REPLY_COPY_BYTES: usize = 128 << 10;

/// Returns the shared memory, if a copy may be of this kind: the return of the call must be all that the program learns of the
/// command.
fn staging(transfer: &Transfer, command: &PendingCommand) -> Result<Option<&'static Staging>, Code> {
    let memory = &transfer.memory;
    let is_there =
        memory.is_zero_copy.load(Ordering::Relaxed) && !memory.context.has_no_zero_copy.load(Ordering::Relaxed);
    let can = transfer.form == BUFFER_RUN
        && transfer.rows.len() > MAX_REPLY_COPY_BYTES
        && command.queue.is_in_order()
        && command.event() == 0;
    Ok(session::staging()?.filter(|_| is_there && can))
}

/// Where the worker has the bytes of a transfer, and at which time.
struct Location {
    /// Offset and length in the zero-copy area.
    range: (u64, usize),
    /// As [`Staging::fill`] takes it.
    absences: u64,
    epoch: u32,
}

/// Waits until the command of a copy has ended. Returns `None`, with nothing enqueued, if the bytes do not lie in the zero-copy
/// area. A write sends its first byte along.
fn locate(
    staging: &Staging,
    transfer: &Transfer,
    command: &PendingCommand,
    first: Option<u8>,
) -> Result<Option<Location>, Code> {
    let (absences, memory, waits) = (staging.absences(), &transfer.memory, transfer.arguments(command));
    let (direction, first) = (first.is_some().into(), first.unwrap_or(0).into());
    let message = kdclZeroCopy { queue: command.queue(), memory: memory.base.id, direction, first, waits: &waits };
    let reply = session::call(&message)?;
    match reply.position {
        NO_ZERO_COPY_OFFSET => memory.context.has_no_zero_copy.store(true, Ordering::Relaxed),
        0 => memory.is_zero_copy.store(false, Ordering::Relaxed),
        position => {
            return Ok(Some(Location { range: (position - 1, transfer.rows.len()), absences, epoch: reply.epoch }));
        }
    }
    Ok(None)
}

/// Copies and waits; returns false if the caller must copy in another way.
///
/// # Safety
///
/// The rows are writable, or readable for [`Direction::Out`].
pub(crate) unsafe fn copy(transfer: &Transfer, command: &PendingCommand, direction: Direction) -> Result<bool, Code> {
    let Some(staging) = staging(transfer, command)? else { return Ok(false) };
    let rows = &transfer.rows;
    // SAFETY: not empty, and readable by the contract.
    let first = (direction == Direction::Out).then(|| unsafe { rows.first() });
    let Some(Location { range, absences, epoch }) = locate(staging, transfer, command, first)? else {
        return Ok(false);
    };
    // SAFETY: the rows are as the contract says; the zero-copy area has as many bytes.
    let moves = |address: usize| unsafe { rows.copy_wide(direction, address) };
    let copied = command.alone(|| match direction {
        Direction::In => staging.read_zero_copy(absences, range, |from| moves(from.expose_provenance())),
        Direction::Out => staging.fill((absences, epoch), range, |to| moves(to.expose_provenance())),
    });
    match copied.transpose() {
        Ok(copied) => Ok(copied.flatten().is_some()),
        Err(error) => Err(session::fail("a copy", &error)),
    }
}

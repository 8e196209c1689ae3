//! Transfers through memory shared with the worker: one block per command ([`crate::host::transfer_blocks`]), from or to which
//! the driver copies. They serve what staging pieces ([`crate::transfers::staged_copy`]) cannot: non-blocking transfers, commands
//! of out-of-order queues, and commands that must not be split.
#![expect(unsafe_code, reason = "copies between the program's memory and the worker's")]

use std::sync::atomic::Ordering;

use katydid_opencl_sys::Code;
use katydid_wire::codec::Field as _;
use katydid_wire::opencl::STAGED_IN_HOST;
use katydid_wire::opencl::message::{kdclRead, kdclWrite};

use crate::host::pending_reads::{self, PENDING_READS};
use crate::host::rows::Direction;
use crate::host::transfer_blocks::TRANSFER_BLOCKS;
use crate::objects::pending_command::PendingCommand;
use crate::process::session;
use crate::transfers::transfer::Transfer;

/// Enqueues a write of the rows' present bytes; returns false if no block can be used. `waits` are the arguments of its message
/// so far.
///
/// # Safety
///
/// The rows are readable.
pub(crate) unsafe fn write(
    transfer: &Transfer,
    command: &PendingCommand,
    (event, blocking): (u32, bool),
    waits: &mut Vec<u8>,
) -> Result<bool, Code> {
    let Some(block) = TRANSFER_BLOCKS.take(transfer.rows.len()) else { return Ok(false) };
    // SAFETY: the rows are readable by the contract; the block has room, and no other code has it.
    unsafe { transfer.rows.copy_wide(Direction::Out, block.start()) };
    block.word().store(1, Ordering::Release);
    (block.start() as u64).put(waits);
    (block.word_address() as u64).put(waits);
    // The worker returns it, however the command ends.
    TRANSFER_BLOCKS.send(block);
    let (queue, memory, form) = (command.queue(), transfer.memory.base.id, transfer.form);
    let message = kdclWrite { queue, event, memory, form, staged: STAGED_IN_HOST, blocking: blocking.into(), waits };
    if transfer.cannot_be_refused(command) {
        return session::enqueue(&message).map(|()| true);
    }
    session::call(&message)?;
    transfer.accepted(command);
    Ok(true)
}

/// Enqueues a read with this number among the pending reads. It waits for the read if `blocking`, else leaves it to the thread
/// that learns of its end. Returns false if no block can be used.
///
/// # Safety
///
/// The rows are writable until the command has ended.
pub(crate) unsafe fn read(
    transfer: &Transfer,
    command: &PendingCommand,
    read_number: u64,
    blocking: bool,
) -> Result<bool, Code> {
    let Some(block) = TRANSFER_BLOCKS.take(transfer.rows.len()) else { return Ok(false) };
    let mut waits = transfer.arguments(command);
    (block.start() as u64).put(&mut waits);
    let (queue, event, memory, form) = (command.queue(), command.event(), transfer.memory.base.id, transfer.form);
    if let Err(code) = session::call(&kdclRead { queue, event, memory, form, read_number, waits: &waits }) {
        // Nothing was enqueued.
        TRANSFER_BLOCKS.give_back(block);
        return Err(code);
    }
    // SAFETY: by the contract.
    unsafe {
        if blocking {
            pending_reads::wait(read_number, &transfer.rows, Some(block))?;
        } else {
            PENDING_READS.expect(read_number, transfer.rows, Some(block));
        }
    }
    Ok(true)
}

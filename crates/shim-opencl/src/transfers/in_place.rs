//! Transfers between a memory object and fine-grained shared virtual memory. The driver accesses that memory itself, in the
//! command's place in the order, as kernels before and after it do.

use katydid_opencl_sys::Code;
use katydid_opencl_sys::constant::{COMMAND_READ_BUFFER, COMMAND_WRITE_BUFFER, MEM_OBJECT_IMAGE1D_ARRAY};
use katydid_wire::codec::Field as _;
use katydid_wire::opencl::STAGED_IN_SVM;
use katydid_wire::opencl::message::{kdclRead, kdclWrite};

use crate::host::rows::Direction;
use crate::objects::pending_command::PendingCommand;
use crate::objects::svm::SVM_RANGES;
use crate::process::session;
use crate::transfers::transfer::Transfer;

/// Returns whether the program's side of a transfer is such memory.
pub(crate) fn is_for(transfer: &Transfer) -> bool {
    let rows = &transfer.rows;
    SVM_RANGES.is_fine(rows.start, rows.reach())
}

/// Returns row and slice pitch in bytes as the driver's functions take them; 0: no gaps, or no rows or slices.
pub(crate) fn pitches(transfer: &Transfer) -> [usize; 2] {
    let rows = &transfer.rows;
    let is_array_of_lines = transfer.memory.image.as_ref().is_some_and(|shape| shape.kind == MEM_OBJECT_IMAGE1D_ARRAY);
    match (rows.has_gaps(), rows.slices) {
        (false, _) => [0, 0],
        (true, 1) if is_array_of_lines => [rows.row, rows.row],
        (true, 1) => [rows.row, 0],
        (true, _) => [rows.row, rows.slice],
    }
}

/// Enqueues a transfer and, if it is blocking, waits.
pub(crate) fn run(
    transfer: &Transfer,
    command: PendingCommand,
    blocking: bool,
    direction: Direction,
) -> Result<(), Code> {
    let command_type = if direction == Direction::Out { COMMAND_WRITE_BUFFER } else { COMMAND_READ_BUFFER };
    let command = if blocking { command.with_event(command_type)? } else { command };
    let mut waits = transfer.arguments(&command);
    [transfer.rows.start].into_iter().chain(pitches(transfer)).for_each(|number| (number as u64).put(&mut waits));
    let waits = &waits[..];
    let (queue, event, memory, form) = (command.queue(), command.event(), transfer.memory.base.id, transfer.form);
    match direction {
        Direction::Out => {
            session::call(&kdclWrite { queue, event, memory, form, staged: STAGED_IN_SVM, blocking: 0, waits })?;
        }
        Direction::In => {
            session::call(&kdclRead { queue, event, memory, form, read_number: 0, waits })?;
        }
    }
    command.sent(blocking)
}

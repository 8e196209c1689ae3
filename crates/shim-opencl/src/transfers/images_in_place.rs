//! Copies of images in memory shared with the worker ([`crate::host::arena`]), by threads of the program. The driver uses these
//! images in place, so a copy only waits for earlier commands and sends none itself.
#![expect(unsafe_code, reason = "copies between memory that programs name and the worker's")]

use katydid_opencl_sys::Code;
use katydid_opencl_sys::constant::MEM_OBJECT_IMAGE1D_ARRAY;
use katydid_wire::opencl::message::kdclFinish;
use katydid_wire::opencl::transfer_extent::TransferExtent;

use crate::host::pending_reads;
use crate::host::rows::Direction;
use crate::objects::image_shape::ImageShape;
use crate::objects::memory::Memory;
use crate::objects::pending_command::PendingCommand;
use crate::process::session;
use crate::transfers::transfer::Transfer;

/// Returns the row and slice pitch of an image without gaps, in bytes.
pub(crate) fn packed(shape: &ImageShape) -> (usize, usize) {
    let row = shape.sizes[0] * shape.element;
    (row, if shape.kind == MEM_OBJECT_IMAGE1D_ARRAY { row } else { row * shape.sizes[1] })
}

/// Waits until all earlier commands have ended. Returns false if the caller must wait in another way, or if the worker has
/// changed meanwhile.
pub(crate) fn have_ended_before(command: &PendingCommand) -> Result<bool, Code> {
    if !command.queue.is_in_order() {
        return Ok(false);
    }
    if !command.can_be_skipped(true) {
        session::call(&kdclFinish { queue: command.queue() })?;
    }
    pending_reads::deliver()?;
    session::take_deferred()?;
    Ok(session::worker()? == command.worker)
}

/// Returns where the bytes of a box of an image are, if they are contiguous there.
fn piece(memory: &Memory, extent: &TransferExtent) -> Option<usize> {
    let shape = memory.image.filter(|_| memory.shared != 0)?;
    let numbers = |numbers: [u64; 3]| numbers.map(|number| number as usize);
    let ([x, y, z], [width, height, depth]) = (numbers(extent.origin), numbers(extent.region));
    let (row, slice) = packed(&shape);
    let has_rows = width == shape.sizes[0] || (height == 1 && depth == 1);
    let has_slices = height == shape.sizes[1] || depth == 1;
    (has_rows && has_slices).then(|| memory.shared + z * slice + y * row + x * shape.element)
}

/// Copies between the program's memory and an image in shared memory, as a blocking command. Returns false if the caller must
/// copy in another way.
///
/// # Safety
///
/// The rows are writable, or readable for [`Direction::Out`].
pub(crate) unsafe fn copy(transfer: &Transfer, command: &PendingCommand, direction: Direction) -> Result<bool, Code> {
    let (memory, rows) = (&transfer.memory, &transfer.rows);
    let is_plain = command.event() == 0 && !command.has_waits();
    let Some(address) = piece(memory, &transfer.extent).filter(|_| is_plain && memory.is_in_place(command.worker))
    else {
        return Ok(false);
    };
    // A write that need not wait copies at once: no program should wait for earlier commands.
    let is_next = match direction {
        Direction::In => have_ended_before(command)?,
        Direction::Out => command.can_be_skipped(true),
    };
    if !is_next {
        return Ok(false);
    }
    // SAFETY: the rows are as the contract says; the image has as many bytes there, and no command uses them.
    let copied = command.alone(|| unsafe { rows.copy_wide(direction, address) });
    // A write that coincided with a change of worker is repeated.
    Ok(copied.is_some() && session::worker()? == command.worker)
}

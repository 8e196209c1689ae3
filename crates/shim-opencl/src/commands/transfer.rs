//! Commands that move data between a memory object and the program's memory.
#![expect(unsafe_code, reason = "reads and writes the memory that programs name")]

use katydid_opencl_sys::constant::{
    COMMAND_READ_BUFFER, COMMAND_READ_BUFFER_RECT, COMMAND_READ_IMAGE, COMMAND_WRITE_BUFFER, COMMAND_WRITE_BUFFER_RECT,
    COMMAND_WRITE_IMAGE, MEM_OBJECT_IMAGE1D_ARRAY,
};
use katydid_opencl_sys::{Code, cl_command_queue, cl_event, cl_mem, void};
use katydid_wire::codec::Field as _;
use katydid_wire::opencl::MAX_REPLY_VALUE_BYTES;
use katydid_wire::opencl::message::{kdclRead, kdclReadNow};
use katydid_wire::opencl::transfer_extent::{BUFFER_BOX, BUFFER_RUN, IMAGE_BOX, TransferExtent};

use crate::ffi::arguments::three;
use crate::host::pending_reads::{self, PENDING_READS};
use crate::host::rows::{Direction, Rows};
use crate::objects::event;
use crate::objects::handle::object;
use crate::objects::memory::Memory;
use crate::objects::pending_command::PendingCommand;
use crate::process::session;
use crate::transfers::transfer::Transfer;
use crate::transfers::{blocks, images_in_place, in_place, send, staged_copy, zero_copy};

/// Enqueues a write. It copies the bytes before it returns, so even a blocking write need not wait for the command. The
/// exception: commands before it, or after it in another queue, could reveal the difference.
///
/// # Safety
///
/// The rows are readable.
pub(crate) unsafe fn write(transfer: &Transfer, command: PendingCommand, blocking: bool) -> Result<(), Code> {
    // SAFETY: guaranteed by the caller.
    let written = unsafe { write_uncounted(transfer, command, blocking) };
    transfer.memory.contents.written();
    written
}

/// Enqueues a write, and leaves the known state of the object's contents unchanged.
///
/// # Safety
///
/// As [`write()`].
unsafe fn write_uncounted(transfer: &Transfer, command: PendingCommand, blocking: bool) -> Result<(), Code> {
    pending_reads::wait_for_overlapping(&transfer.rows)?;
    if in_place::is_for(transfer) {
        return in_place::run(transfer, command, blocking, Direction::Out);
    }
    // SAFETY: by the contract.
    if unsafe { images_in_place::copy(transfer, &command, Direction::Out)? } {
        command.ended();
        return Ok(());
    }
    // SAFETY: by the contract.
    if blocking && unsafe { zero_copy::copy(transfer, &command, Direction::Out)? } {
        return finish(command);
    }
    let waits = blocking && (command.has_waits() || PENDING_READS.any() || !command.queue.is_before_all());
    let command = if waits { command.with_event(COMMAND_WRITE_BUFFER)? } else { command }.blocking(blocking && !waits);
    // SAFETY: by the contract.
    unsafe {
        if !staged_copy::write(transfer, &command, blocking)? {
            send::send(transfer, &command, (true, true))?;
        }
    }
    written(command, waits)
}

/// Enqueues a read and, if it is blocking, waits. Returns its number among the pending reads if its bytes are still to be
/// fetched, else 0.
///
/// # Safety
///
/// The rows are writable, and stay so until the command has ended.
pub(crate) unsafe fn read(transfer: &Transfer, command: PendingCommand, blocking: bool) -> Result<u64, Code> {
    if in_place::is_for(transfer) {
        return in_place::run(transfer, command, blocking, Direction::In).map(|()| 0);
    }
    if !blocking {
        // SAFETY: by the contract.
        let read_number = unsafe { begin(transfer, &command)? };
        command.publish();
        return Ok(read_number);
    }
    // SAFETY: by the contract.
    unsafe {
        if PENDING_READS.come_to(&transfer.rows) { read_last(transfer, command)? } else { read_now(transfer, command)? }
    }
    Ok(0)
}

/// Enqueues a read that is fetched by the thread that learns of its end. Returns its number among the pending reads.
///
/// # Safety
///
/// As [`read`].
unsafe fn begin(transfer: &Transfer, command: &PendingCommand) -> Result<u64, Code> {
    let read_number = PENDING_READS.number();
    // SAFETY: by the contract.
    if unsafe { blocks::read(transfer, command, read_number, false)? } {
        return Ok(read_number);
    }
    ask_for(transfer, command, read_number)?;
    // SAFETY: by the contract.
    unsafe { PENDING_READS.expect(read_number, transfer.rows, None) };
    Ok(read_number)
}

/// Reads and waits, when older pending reads have the same target: their bytes must arrive first.
///
/// # Safety
///
/// The rows are writable.
unsafe fn read_last(transfer: &Transfer, command: PendingCommand) -> Result<(), Code> {
    let command = command.with_event(COMMAND_READ_BUFFER)?;
    // SAFETY: guaranteed by the caller; the command has ended when this returns.
    unsafe { begin(transfer, &command)? };
    event::wait_for(&[command.event()])?;
    command.ended();
    Ok(())
}

/// Reads and waits by the shortest path.
///
/// # Safety
///
/// The rows are writable.
pub(crate) unsafe fn read_now(transfer: &Transfer, command: PendingCommand) -> Result<(), Code> {
    // SAFETY: by the contract.
    if unsafe {
        images_in_place::copy(transfer, &command, Direction::In)?
            || zero_copy::copy(transfer, &command, Direction::In)?
            || staged_copy::read(transfer, &command)?
    } {
        return finish(command);
    }
    let read_number = PENDING_READS.number();
    // SAFETY: by the contract.
    if unsafe { blocks::read(transfer, &command, read_number, true)? } {
        return finish(command);
    }
    if transfer.rows.len() > MAX_REPLY_VALUE_BYTES {
        ask_for(transfer, &command, read_number)?;
        // SAFETY: by the contract.
        unsafe { pending_reads::wait(read_number, &transfer.rows, None)? };
        return finish(command);
    }
    let arguments = transfer.arguments(&command);
    let (queue, event, memory, form) = (command.queue(), command.event(), transfer.memory.base.id, transfer.form);
    let message = kdclReadNow { queue, event, memory, form, waits: &arguments };
    // The reply is one field of bytes after its length.
    session::call_and_read(&message, |reply| {
        let data = reply.get(4..).filter(|data| data.len() == transfer.rows.len())?;
        // SAFETY: by the contract.
        unsafe { transfer.rows.scatter(0, data) };
        Some(())
    })?;
    transfer.memory.accepted(&command);
    finish(command)
}

/// Enqueues a read whose bytes stay in the worker.
fn ask_for(transfer: &Transfer, command: &PendingCommand, read_number: u64) -> Result<(), Code> {
    let (queue, event, memory, form) = (command.queue(), command.event(), transfer.memory.base.id, transfer.form);
    session::call(&kdclRead { queue, event, memory, form, read_number, waits: &transfer.arguments(command) }).map(drop)
}

/// Completes a command that the program has waited for.
fn finish(command: PendingCommand) -> Result<(), Code> {
    deliver()?;
    command.ended();
    Ok(())
}

/// Delivers pending data and deferred errors to the program once commands have ended.
pub(crate) fn deliver() -> Result<(), Code> {
    pending_reads::deliver()?;
    session::take_deferred()
}

/// Completes a write whose bytes were copied.
fn written(command: PendingCommand, waits: bool) -> Result<(), Code> {
    if waits {
        event::wait_for(&[command.event()])?;
        command.ended();
        return Ok(());
    }
    let result = if command.blocks() { command.queue.context.take_for_done() } else { Ok(()) };
    command.publish();
    result
}

/// Returns the transfer between a run of a buffer and as many bytes of the program.
pub(crate) fn run(buffer: cl_mem, offset: usize, size: usize, pointer: *const void) -> Result<Transfer, Code> {
    let memory = object::<Memory>(buffer)?;
    let fits = offset.checked_add(size).is_some_and(|end| end as u64 <= memory.size);
    if pointer.is_null() || !fits || !memory.is_buffer() {
        return Err(if memory.is_buffer() { Code::INVALID_VALUE } else { Code::INVALID_MEM_OBJECT });
    }
    let rows = Rows::run(pointer.expose_provenance(), size);
    Ok(Transfer { memory, form: BUFFER_RUN, extent: TransferExtent::run(offset as u64, size as u64), rows })
}

/// # Safety
///
/// Lists have their stated lengths; `ptr` is writable for `size` bytes until the command has ended.
#[expect(clippy::too_many_arguments, reason = "the vendor's signature")]
pub(crate) unsafe fn enqueue_read_buffer(
    queue: cl_command_queue,
    buffer: cl_mem,
    blocking: u32,
    offset: usize,
    size: usize,
    ptr: *mut void,
    count: u32,
    events: *const cl_event,
    event: *mut cl_event,
) -> Result<(), Code> {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let transfer = run(buffer, offset, size, ptr)?.allowed(Direction::In)?;
        read(&transfer, PendingCommand::new(queue, (count, events, event), COMMAND_READ_BUFFER)?, blocking != 0)
            .map(drop)
    }
}

/// # Safety
///
/// Lists have their stated lengths; `ptr` is readable for `size` bytes.
#[expect(clippy::too_many_arguments, reason = "the vendor's signature")]
pub(crate) unsafe fn enqueue_write_buffer(
    queue: cl_command_queue,
    buffer: cl_mem,
    blocking: u32,
    offset: usize,
    size: usize,
    ptr: *const void,
    count: u32,
    events: *const cl_event,
    event: *mut cl_event,
) -> Result<(), Code> {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let transfer = run(buffer, offset, size, ptr)?.allowed(Direction::Out)?;
        write(&transfer, PendingCommand::new(queue, (count, events, event), COMMAND_WRITE_BUFFER)?, blocking != 0)
    }
}

/// Returns the pitches of a box; a pitch of 0 means no gaps.
pub(crate) fn pitches(region: [usize; 3], row: usize, slice: usize) -> Result<(usize, usize), Code> {
    let row = if row == 0 { region[0] } else { row };
    let rows = region[1].checked_mul(row).ok_or(Code::INVALID_VALUE)?;
    let slice = if slice == 0 { rows } else { slice };
    let fits = row >= region[0] && slice >= rows && row > 0 && slice.is_multiple_of(row);
    if fits { Ok((row, slice)) } else { Err(Code::INVALID_VALUE) }
}

/// Returns the end of a box, which must not be empty.
fn end(origin: [usize; 3], region: [usize; 3], row: usize, slice: usize) -> Option<usize> {
    let last = |at: usize, pitch: usize| origin[at].checked_add(region[at] - 1)?.checked_mul(pitch);
    last(2, slice)?.checked_add(last(1, row)?)?.checked_add(last(0, 1)?)?.checked_add(1)
}

/// A box of a buffer, and a box of the program's memory.
struct BoxPair {
    buffer_origin: *const usize,
    host_origin: *const usize,
    region: *const usize,
    buffer_pitches: (usize, usize),
    host_pitches: (usize, usize),
}

impl BoxPair {
    /// # Safety
    ///
    /// The pointers are null or hold three numbers.
    unsafe fn transfer(self, buffer: cl_mem, pointer: *const void) -> Result<Transfer, Code> {
        let memory = object::<Memory>(buffer)?;
        if !memory.is_buffer() {
            return Err(Code::INVALID_MEM_OBJECT);
        }
        // SAFETY: handed on.
        let (origin, host, region) =
            unsafe { (three(self.buffer_origin)?, three(self.host_origin)?, three(self.region)?) };
        if pointer.is_null() || region.contains(&0) {
            return Err(Code::INVALID_VALUE);
        }
        let (row, slice) = pitches(region, self.host_pitches.0, self.host_pitches.1)?;
        let (own_row, own_slice) = pitches(region, self.buffer_pitches.0, self.buffer_pitches.1)?;
        if end(origin, region, own_row, own_slice).is_none_or(|end| end as u64 > memory.size) {
            return Err(Code::INVALID_VALUE);
        }
        // No memory extends past the last address, so such a box cannot exist.
        let ends = end(host, region, row, slice).and_then(|end| pointer.expose_provenance().checked_add(end));
        ends.ok_or(Code::INVALID_VALUE)?;
        let start = pointer.expose_provenance() + host[2] * slice + host[1] * row + host[0];
        let rows = Rows { start, width: region[0], rows: region[1], slices: region[2], row, slice };
        let numbers = |numbers: [usize; 3]| numbers.map(|number| number as u64);
        let extent = TransferExtent {
            origin: numbers(origin),
            region: numbers(region),
            row: own_row as u64,
            slice: own_slice as u64,
        };
        Ok(Transfer { memory, form: BUFFER_BOX, extent, rows })
    }
}

/// # Safety
///
/// Lists have their stated lengths; the box at `ptr` is writable until the command has ended.
#[expect(clippy::too_many_arguments, reason = "the vendor's signature")]
pub(crate) unsafe fn enqueue_read_buffer_rect(
    queue: cl_command_queue,
    buffer: cl_mem,
    blocking: u32,
    buffer_origin: *const usize,
    host_origin: *const usize,
    region: *const usize,
    buffer_row_pitch: usize,
    buffer_slice_pitch: usize,
    host_row_pitch: usize,
    host_slice_pitch: usize,
    ptr: *mut void,
    count: u32,
    events: *const cl_event,
    event: *mut cl_event,
) -> Result<(), Code> {
    let (buffer_pitches, host_pitches) = ((buffer_row_pitch, buffer_slice_pitch), (host_row_pitch, host_slice_pitch));
    // SAFETY: guaranteed by the caller.
    unsafe {
        let boxes = BoxPair { buffer_origin, host_origin, region, buffer_pitches, host_pitches };
        let transfer = boxes.transfer(buffer, ptr)?.allowed(Direction::In)?;
        let command = PendingCommand::new(queue, (count, events, event), COMMAND_READ_BUFFER_RECT)?;
        read(&transfer, command, blocking != 0).map(drop)
    }
}

/// # Safety
///
/// Lists have their stated lengths; the box at `ptr` is readable.
#[expect(clippy::too_many_arguments, reason = "the vendor's signature")]
pub(crate) unsafe fn enqueue_write_buffer_rect(
    queue: cl_command_queue,
    buffer: cl_mem,
    blocking: u32,
    buffer_origin: *const usize,
    host_origin: *const usize,
    region: *const usize,
    buffer_row_pitch: usize,
    buffer_slice_pitch: usize,
    host_row_pitch: usize,
    host_slice_pitch: usize,
    ptr: *const void,
    count: u32,
    events: *const cl_event,
    event: *mut cl_event,
) -> Result<(), Code> {
    let (buffer_pitches, host_pitches) = ((buffer_row_pitch, buffer_slice_pitch), (host_row_pitch, host_slice_pitch));
    // SAFETY: guaranteed by the caller.
    unsafe {
        let boxes = BoxPair { buffer_origin, host_origin, region, buffer_pitches, host_pitches };
        let transfer = boxes.transfer(buffer, ptr)?.allowed(Direction::Out)?;
        let command = PendingCommand::new(queue, (count, events, event), COMMAND_WRITE_BUFFER_RECT)?;
        write(&transfer, command, blocking != 0)
    }
}

/// Returns the transfer between a box of an image and the program's memory.
///
/// # Safety
///
/// Origin and region are null or hold three numbers; for an image with levels, the origin holds four.
pub(crate) unsafe fn image_box(
    image: cl_mem,
    origin: *const usize,
    region: *const usize,
    (row, slice): (usize, usize),
    pointer: *const void,
) -> Result<Transfer, Code> {
    let memory = object::<Memory>(image)?;
    // SAFETY: guaranteed by the caller.
    let (place_in_image, region) = unsafe { (three(origin)?, three(region)?) };
    let shape = memory.image.as_ref().ok_or(Code::INVALID_MEM_OBJECT)?;
    // SAFETY: not null, and an image with levels has an origin of four numbers, by the contract.
    let level = unsafe { shape.level(origin) } as u64;
    if pointer.is_null() || region.contains(&0) {
        return Err(Code::INVALID_VALUE);
    }
    shape.check(place_in_image, region)?;
    let width = region[0].checked_mul(shape.element).ok_or(Code::INVALID_VALUE)?;
    // The images of an array of lines are a slice apart, although the region counts them as rows.
    let row = if shape.kind == MEM_OBJECT_IMAGE1D_ARRAY && slice != 0 { slice } else { row };
    let row = if row == 0 { width } else { row };
    let rows = region[1].checked_mul(row).ok_or(Code::INVALID_VALUE)?;
    let slice = if region[2] == 1 || slice == 0 { rows } else { slice };
    if row < width || slice < rows {
        return Err(Code::INVALID_VALUE);
    }
    let rows = Rows { start: pointer.expose_provenance(), width, rows: region[1], slices: region[2], row, slice };
    let numbers = |numbers: [usize; 3]| numbers.map(|number| number as u64);
    let extent = TransferExtent { origin: numbers(place_in_image), region: numbers(region), row: level, slice: 0 };
    Ok(Transfer { memory, form: IMAGE_BOX, extent, rows })
}

/// A read or a write of an image, as the program asks for it.
struct ImageTransfer {
    image: cl_mem,
    origin: *const usize,
    region: *const usize,
    pitches: (usize, usize),
    pointer: *const void,
}

impl ImageTransfer {
    /// The transfer; none if the region has no elements. Drivers look at accesses before they look at the region.
    ///
    /// # Safety
    ///
    /// As [`image_box`].
    unsafe fn checked(&self, direction: Direction) -> Result<Option<Transfer>, Code> {
        let memory = object::<Memory>(self.image)?;
        let shape = memory.image.as_ref().ok_or(Code::INVALID_MEM_OBJECT)?;
        if self.pointer.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        memory.allows(direction)?;
        // SAFETY: handed on.
        let (origin, region) = unsafe { (three(self.origin)?, three(self.region)?) };
        if region.contains(&0) {
            return shape.check(origin, region).map(|()| None);
        }
        // SAFETY: handed on.
        unsafe {
            image_box(self.image, self.origin, self.region, self.pitches, self.pointer)?.allowed(direction).map(Some)
        }
    }

    /// Enqueues one without elements, if the driver takes such a region.
    ///
    /// # Safety
    ///
    /// As [`image_box`].
    unsafe fn of_nothing(&self, command: PendingCommand, command_type: u32, blocking: bool) -> Result<(), Code> {
        let command = if blocking { command.with_event(command_type)? } else { command };
        let memory = object::<Memory>(self.image)?;
        // SAFETY: handed on.
        let (origin, region) = unsafe { (three(self.origin)?, three(self.region)?) };
        // SAFETY: not null, and an image with levels has an origin of four numbers, by the contract.
        let level = memory.image.as_ref().map_or(0, |shape| unsafe { shape.level(self.origin) }) as u64;
        let numbers = |numbers: [usize; 3]| numbers.map(|number| number as u64);
        let extent = TransferExtent { origin: numbers(origin), region: numbers(region), row: level, slice: 0 };
        let mut waits = command.arguments();
        extent.put(&mut waits);
        let (queue, event, memory) = (command.queue(), command.event(), memory.base.id);
        session::call(&kdclRead { queue, event, memory, form: IMAGE_BOX, read_number: 0, waits: &waits })?;
        command.sent(blocking)
    }
}

/// # Safety
///
/// Lists have their stated lengths; the box at `ptr` is writable until the command has ended.
#[expect(clippy::too_many_arguments, reason = "the vendor's signature")]
pub(crate) unsafe fn enqueue_read_image(
    queue: cl_command_queue,
    image: cl_mem,
    blocking: u32,
    origin: *const usize,
    region: *const usize,
    row_pitch: usize,
    slice_pitch: usize,
    ptr: *mut void,
    count: u32,
    events: *const cl_event,
    event: *mut cl_event,
) -> Result<(), Code> {
    let pending = |command_type| {
        // SAFETY: handed on.
        unsafe { PendingCommand::new(queue, (count, events, event), command_type) }
    };
    let command = ImageTransfer { image, origin, region, pitches: (row_pitch, slice_pitch), pointer: ptr };
    // SAFETY: handed on.
    unsafe {
        match command.checked(Direction::In)? {
            Some(transfer) => read(&transfer, pending(COMMAND_READ_IMAGE)?, blocking != 0).map(drop),
            None => command.of_nothing(pending(COMMAND_READ_IMAGE)?, COMMAND_READ_IMAGE, blocking != 0),
        }
    }
}

/// # Safety
///
/// Lists have their stated lengths; the box at `ptr` is readable.
#[expect(clippy::too_many_arguments, reason = "the vendor's signature")]
pub(crate) unsafe fn enqueue_write_image(
    queue: cl_command_queue,
    image: cl_mem,
    blocking: u32,
    origin: *const usize,
    region: *const usize,
    input_row_pitch: usize,
    input_slice_pitch: usize,
    ptr: *const void,
    count: u32,
    events: *const cl_event,
    event: *mut cl_event,
) -> Result<(), Code> {
    let pending = |command_type| {
        // SAFETY: handed on.
        unsafe { PendingCommand::new(queue, (count, events, event), command_type) }
    };
    let command = ImageTransfer { image, origin, region, pitches: (input_row_pitch, input_slice_pitch), pointer: ptr };
    // SAFETY: handed on.
    unsafe {
        match command.checked(Direction::Out)? {
            Some(transfer) => write(&transfer, pending(COMMAND_WRITE_IMAGE)?, blocking != 0),
            None => command.of_nothing(pending(COMMAND_WRITE_IMAGE)?, COMMAND_WRITE_IMAGE, blocking != 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boxes_end_with_their_last_byte_or_nowhere() {
        assert_eq!(end([1, 2, 3], [4, 5, 6], 100, 1000), Some(8 * 1000 + 6 * 100 + 5));
        assert_eq!(end([0; 3], [1; 3], 1, 1), Some(1));
        for at in 0..3 {
            let mut origin = [0; 3];
            origin[at] = usize::MAX;
            assert_eq!(end(origin, [2; 3], 2, 4), None, "{at}");
        }
    }

    #[test]
    fn pitches_of_zero_leave_no_gaps() {
        assert_eq!(pitches([4, 3, 2], 0, 0), Ok((4, 12)));
        assert_eq!(pitches([4, 3, 2], 5, 0), Ok((5, 15)));
        assert_eq!(pitches([4, 3, 2], 5, 20), Ok((5, 20)));
        for (row, slice) in [(3, 0), (5, 14), (5, 16)] {
            assert_eq!(pitches([4, 3, 2], row, slice), Err(Code::INVALID_VALUE), "{row} {slice}");
        }
        assert_eq!(pitches([usize::MAX, 2, 2], 0, 0), Err(Code::INVALID_VALUE));
    }
}

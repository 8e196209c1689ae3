//! Commands between a memory object and the program's memory.
#![expect(unsafe_code, reason = "reads and writes the memory that programs name")]

use std::sync::Arc;

use katydid_opencl_sys::constant::{
    COMMAND_READ_BUFFER, COMMAND_READ_BUFFER_RECT, COMMAND_READ_IMAGE, COMMAND_WRITE_BUFFER, COMMAND_WRITE_BUFFER_RECT,
    COMMAND_WRITE_IMAGE, MEM_OBJECT_IMAGE1D_ARRAY,
};
use katydid_opencl_sys::{Code, cl_command_queue, cl_event, cl_mem, void};
use katydid_wire::codec::Field as _;
use katydid_wire::opencl::MAX_REPLY_VALUE_BYTES;
use katydid_wire::opencl::extent::{BOX, Extent, IMAGE, RUN};
use katydid_wire::opencl::message::{kdclRead, kdclReadNow, kdclWrite};

use crate::commands::pending::PendingCommand;
use crate::objects::event;
use crate::objects::handle::object;
use crate::objects::memory::Memory;
use crate::process::shim::shim;
use crate::transfers::blocks;
use crate::transfers::bulk;
use crate::transfers::in_place;
use crate::transfers::pending_reads;
use crate::transfers::pieces;
use crate::transfers::rows::{Direction, Rows};
use crate::transfers::zero_copy;

/// A part of an object, and the program's memory for it.
#[derive(Clone)]
pub(crate) struct Transfer {
    pub(crate) memory: Arc<Memory>,
    pub(crate) form: u32,
    pub(crate) extent: Extent,
    pub(crate) rows: Rows,
}

impl Transfer {
    /// The transfer, if the object allows the program such a one.
    fn allowed(self, direction: Direction) -> Result<Self, Code> {
        if shim()?.ranges.leaves_pages(self.rows.start, self.rows.reach()) {
            return Err(Code::INVALID_VALUE);
        }
        self.memory.allows(direction).map(|()| self)
    }

    /// The bytes of the command's message so far: the waits, the extent.
    pub(crate) fn arguments(&self, order: &PendingCommand) -> Vec<u8> {
        let mut bytes = order.arguments();
        self.extent.put(&mut bytes);
        bytes
    }

    /// Enqueues a write. The bytes are taken before this returns, so even a program that waits for that need not wait
    /// for the command, unless it could tell by what comes before the command, or after it in another queue.
    ///
    /// # Safety
    ///
    /// The rows are readable.
    pub(crate) unsafe fn write(&self, order: PendingCommand, blocking: bool) -> Result<(), Code> {
        let shim = shim()?;
        pending_reads::wait_for_place(&self.rows)?;
        if in_place::is_for(self)? {
            return in_place::run(self, order, blocking, Direction::Out);
        }
        // SAFETY: by the contract.
        if blocking && unsafe { zero_copy::copy(self, &order, Direction::Out)? } {
            return came(order);
        }
        let waits = blocking && (order.has_waits() || shim.pending_reads.any() || !order.queue.is_before_all());
        let order = if waits { order.with_event(COMMAND_WRITE_BUFFER)? } else { order }.blocking(blocking && !waits);
        // SAFETY: by the contract.
        unsafe {
            if !pieces::write(self, &order, blocking)? {
                self.send(&order, (true, true))?;
            }
        }
        written(order, waits)
    }

    /// Sends a write at once, which is the first of its command or not, and the last or not.
    ///
    /// # Safety
    ///
    /// The rows are readable.
    pub(crate) unsafe fn send(&self, order: &PendingCommand, (is_first, is_last): (bool, bool)) -> Result<(), Code> {
        let link = &shim()?.link;
        let (event, blocking) = if is_last { (order.event(), order.blocks()) } else { (0, false) };
        let mut waits = if is_first { self.arguments(order) } else { self.alone() };
        // SAFETY: by the contract.
        if unsafe { blocks::write(self, (order.queue(), event, blocking), &mut waits)? } {
            return Ok(());
        }
        // SAFETY: by the contract.
        let data = unsafe { self.rows.gather() };
        let sent = bulk::send(link, &data)?;
        waits.extend_from_slice(sent.inline);
        let (queue, memory) = (order.queue(), self.memory.base.id);
        let (form, staged, blocking) = (self.form, sent.staged, blocking.into());
        let message = kdclWrite { queue, event, memory, form, staged, blocking, waits: &waits };
        if staged == 0 && self.is_sure(order) {
            return link.enqueue(&message);
        }
        link.call(&message)?;
        self.memory.accepted(order);
        Ok(())
    }

    /// Whether the driver's word need not be waited for.
    fn is_sure(&self, order: &PendingCommand) -> bool {
        self.form == RUN && self.memory.is_sure(order, self.extent.origin[0], self.extent.region[0])
    }

    /// The bytes of a message that waits for no events.
    pub(crate) fn alone(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(128);
        katydid_wire::opencl::list::put::<u32>(&mut bytes, &[]);
        self.extent.put(&mut bytes);
        bytes
    }

    /// Enqueues a read and, if the program waits, waits. Its number among the landings, if it does not and they are to be brought
    /// over; else 0.
    ///
    /// # Safety
    ///
    /// The rows are writable, and stay so until the command has ended.
    pub(crate) unsafe fn read(&self, order: PendingCommand, blocking: bool) -> Result<u64, Code> {
        if in_place::is_for(self)? {
            return in_place::run(self, order, blocking, Direction::In).map(|()| 0);
        }
        if !blocking {
            // SAFETY: by the contract.
            let landing = unsafe { self.begin(&order)? };
            order.done();
            return Ok(landing);
        }
        // SAFETY: by the contract.
        unsafe {
            if shim()?.pending_reads.come_to(&self.rows) { self.read_last(order)? } else { self.read_now(order)? }
        }
        Ok(0)
    }

    /// Enqueues a read, and leaves it to those who learn that it has ended. Its number among the landings.
    ///
    /// # Safety
    ///
    /// As [`Transfer::read`].
    unsafe fn begin(&self, order: &PendingCommand) -> Result<u64, Code> {
        let shim = shim()?;
        let landing = shim.pending_reads.number();
        // SAFETY: by the contract.
        if unsafe { blocks::read(self, order, landing, false)? } {
            return Ok(landing);
        }
        self.ask_for(order, landing)?;
        // SAFETY: by the contract.
        unsafe { shim.pending_reads.expect(landing, self.rows, None) };
        Ok(landing)
    }

    /// Reads and waits, where bytes of older reads are on their way to the same place: these come first.
    ///
    /// # Safety
    ///
    /// The rows are writable.
    unsafe fn read_last(&self, order: PendingCommand) -> Result<(), Code> {
        let order = order.with_event(COMMAND_READ_BUFFER)?;
        // SAFETY: handed on; the command has ended when this returns.
        unsafe { self.begin(&order)? };
        event::wait_for(&[order.event()])?;
        order.ended();
        Ok(())
    }

    /// Reads and waits, in the shortest way.
    ///
    /// # Safety
    ///
    /// The rows are writable.
    unsafe fn read_now(&self, order: PendingCommand) -> Result<(), Code> {
        let shim = shim()?;
        // SAFETY: by the contract.
        if unsafe { zero_copy::copy(self, &order, Direction::In)? || pieces::read(self, &order)? } {
            return came(order);
        }
        let landing = shim.pending_reads.number();
        // SAFETY: by the contract.
        if unsafe { blocks::read(self, &order, landing, true)? } {
            return came(order);
        }
        if self.rows.len() > MAX_REPLY_VALUE_BYTES {
            self.ask_for(&order, landing)?;
            // SAFETY: by the contract.
            unsafe { pending_reads::wait(landing, &self.rows, None)? };
            return came(order);
        }
        let arguments = self.arguments(&order);
        let (queue, event, memory, form) = (order.queue(), order.event(), self.memory.base.id, self.form);
        let message = kdclReadNow { queue, event, memory, form, waits: &arguments };
        // The reply is one field of bytes with its length before it.
        shim.link.exchange(&message, |reply| {
            let data = reply.get(4..).filter(|data| data.len() == self.rows.len())?;
            // SAFETY: by the contract.
            unsafe { self.rows.scatter(0, data) };
            Some(())
        })?;
        self.memory.accepted(&order);
        came(order)
    }

    /// Enqueues a read whose bytes stay in the worker.
    fn ask_for(&self, order: &PendingCommand, landing: u64) -> Result<(), Code> {
        let (queue, event, memory, form) = (order.queue(), order.event(), self.memory.base.id, self.form);
        shim()?.link.call(&kdclRead { queue, event, memory, form, landing, waits: &self.arguments(order) }).map(drop)
    }
}

/// The end of a command for which the program has waited.
fn came(order: PendingCommand) -> Result<(), Code> {
    pending_reads::settle()?;
    shim()?.link.earlier()?;
    order.ended();
    Ok(())
}

/// The end of a write whose bytes are taken.
fn written(order: PendingCommand, waits: bool) -> Result<(), Code> {
    if waits {
        event::wait_for(&[order.event()])?;
        order.ended();
        return Ok(());
    }
    let taken = if order.blocks() { order.queue.context.take_for_done() } else { Ok(()) };
    order.done();
    taken
}

/// A run of a buffer, and as many bytes of the program's.
pub(crate) fn run(buffer: cl_mem, offset: usize, size: usize, place: *const void) -> Result<Transfer, Code> {
    let memory = object::<Memory>(buffer)?;
    let fits = offset.checked_add(size).is_some_and(|end| end as u64 <= memory.size);
    if place.is_null() || !fits || !memory.is_buffer() {
        return Err(if memory.is_buffer() { Code::INVALID_VALUE } else { Code::INVALID_MEM_OBJECT });
    }
    let rows = Rows::run(place.expose_provenance(), size);
    Ok(Transfer { memory, form: RUN, extent: Extent::run(offset as u64, size as u64), rows })
}

type WaitList = (u32, *const cl_event, *mut cl_event);

/// # Safety
///
/// Lists are as long as said; `ptr` is writable for `size` bytes until the command has ended.
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
    // SAFETY: handed on.
    unsafe {
        let order = PendingCommand::new(queue, (count, events, event), COMMAND_READ_BUFFER)?;
        run(buffer, offset, size, ptr)?.allowed(Direction::In)?.read(order, blocking != 0).map(drop)
    }
}

/// # Safety
///
/// Lists are as long as said; `ptr` is readable for `size` bytes.
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
    // SAFETY: handed on.
    unsafe {
        let order = PendingCommand::new(queue, (count, events, event), COMMAND_WRITE_BUFFER)?;
        run(buffer, offset, size, ptr)?.allowed(Direction::Out)?.write(order, blocking != 0)
    }
}

/// Three numbers of a C caller's.
///
/// # Safety
///
/// `place` is null or holds three numbers.
pub(crate) unsafe fn three(place: *const usize) -> Result<[usize; 3], Code> {
    if place.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: not null, so three numbers by the contract.
    Ok(unsafe { place.cast::<[usize; 3]>().read_unaligned() })
}

/// Pitches of a box: 0 stands for no gaps.
pub(crate) fn pitches(region: [usize; 3], row: usize, slice: usize) -> Result<(usize, usize), Code> {
    let row = if row == 0 { region[0] } else { row };
    let rows = region[1].checked_mul(row).ok_or(Code::INVALID_VALUE)?;
    let slice = if slice == 0 { rows } else { slice };
    let fits = row >= region[0] && slice >= rows && row > 0 && slice.is_multiple_of(row);
    if fits { Ok((row, slice)) } else { Err(Code::INVALID_VALUE) }
}

/// Where a box ends, which is not empty.
fn end(origin: [usize; 3], region: [usize; 3], row: usize, slice: usize) -> Option<usize> {
    let last = |at: usize, pitch: usize| origin[at].checked_add(region[at] - 1)?.checked_mul(pitch);
    last(2, slice)?.checked_add(last(1, row)?)?.checked_add(last(0, 1)?)?.checked_add(1)
}

/// A box of a buffer, and one of the program's memory.
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
    unsafe fn transfer(self, buffer: cl_mem, place: *const void) -> Result<Transfer, Code> {
        let memory = object::<Memory>(buffer)?;
        // SAFETY: handed on.
        let (origin, host, region) =
            unsafe { (three(self.buffer_origin)?, three(self.host_origin)?, three(self.region)?) };
        if place.is_null() || region.contains(&0) || !memory.is_buffer() {
            return Err(if memory.is_buffer() { Code::INVALID_VALUE } else { Code::INVALID_MEM_OBJECT });
        }
        let (row, slice) = pitches(region, self.host_pitches.0, self.host_pitches.1)?;
        let (own_row, own_slice) = pitches(region, self.buffer_pitches.0, self.buffer_pitches.1)?;
        if end(origin, region, own_row, own_slice).is_none_or(|end| end as u64 > memory.size) {
            return Err(Code::INVALID_VALUE);
        }
        // No memory ends beyond all addresses, so none begins there.
        let ends = end(host, region, row, slice).and_then(|end| place.expose_provenance().checked_add(end));
        ends.ok_or(Code::INVALID_VALUE)?;
        let start = place.expose_provenance() + host[2] * slice + host[1] * row + host[0];
        let rows = Rows { start, width: region[0], rows: region[1], slices: region[2], row, slice };
        let numbers = |numbers: [usize; 3]| numbers.map(|number| number as u64);
        let extent =
            Extent { origin: numbers(origin), region: numbers(region), row: own_row as u64, slice: own_slice as u64 };
        Ok(Transfer { memory, form: BOX, extent, rows })
    }
}

/// # Safety
///
/// Lists are as long as said; the box at `ptr` is writable until the command has ended.
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
    // SAFETY: handed on.
    unsafe {
        let order = PendingCommand::new(queue, (count, events, event), COMMAND_READ_BUFFER_RECT)?;
        let boxes = BoxPair { buffer_origin, host_origin, region, buffer_pitches, host_pitches };
        boxes.transfer(buffer, ptr)?.allowed(Direction::In)?.read(order, blocking != 0).map(drop)
    }
}

/// # Safety
///
/// Lists are as long as said; the box at `ptr` is readable.
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
    // SAFETY: handed on.
    unsafe {
        let order = PendingCommand::new(queue, (count, events, event), COMMAND_WRITE_BUFFER_RECT)?;
        let boxes = BoxPair { buffer_origin, host_origin, region, buffer_pitches, host_pitches };
        boxes.transfer(buffer, ptr)?.allowed(Direction::Out)?.write(order, blocking != 0)
    }
}

/// A box of an image, and the program's memory for it.
///
/// # Safety
///
/// Origin and region are null or hold three numbers; four the origin of an image with levels.
pub(crate) unsafe fn image_box(
    image: cl_mem,
    origin: *const usize,
    region: *const usize,
    (row, slice): (usize, usize),
    place: *const void,
) -> Result<Transfer, Code> {
    let memory = object::<Memory>(image)?;
    // SAFETY: handed on.
    let (place_in_image, region) = unsafe { (three(origin)?, three(region)?) };
    let shape = memory.image.as_ref().ok_or(Code::INVALID_MEM_OBJECT)?;
    // SAFETY: not null, and an image with levels has an origin of four numbers, by the contract.
    let level = unsafe { shape.level(origin) } as u64;
    if place.is_null() || region.contains(&0) {
        return Err(Code::INVALID_VALUE);
    }
    shape.check(place_in_image, region)?;
    let width = region[0].checked_mul(shape.element).ok_or(Code::INVALID_VALUE)?;
    // The images of an array of lines are a slice apart, though the region counts them as rows.
    let row = if shape.kind == MEM_OBJECT_IMAGE1D_ARRAY && slice != 0 { slice } else { row };
    let row = if row == 0 { width } else { row };
    let rows = region[1].checked_mul(row).ok_or(Code::INVALID_VALUE)?;
    let slice = if region[2] == 1 || slice == 0 { rows } else { slice };
    if row < width || slice < rows {
        return Err(Code::INVALID_VALUE);
    }
    let rows = Rows { start: place.expose_provenance(), width, rows: region[1], slices: region[2], row, slice };
    let numbers = |numbers: [usize; 3]| numbers.map(|number| number as u64);
    let extent = Extent { origin: numbers(place_in_image), region: numbers(region), row: level, slice: 0 };
    Ok(Transfer { memory, form: IMAGE, extent, rows })
}

/// # Safety
///
/// Lists are as long as said; the box at `ptr` is writable until the command has ended.
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
    let waits: WaitList = (count, events, event);
    // SAFETY: handed on.
    unsafe {
        let order = PendingCommand::new(queue, waits, COMMAND_READ_IMAGE)?;
        image_box(image, origin, region, (row_pitch, slice_pitch), ptr)?
            .allowed(Direction::In)?
            .read(order, blocking != 0)
            .map(drop)
    }
}

/// # Safety
///
/// Lists are as long as said; the box at `ptr` is readable.
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
    let waits: WaitList = (count, events, event);
    // SAFETY: handed on.
    unsafe {
        let order = PendingCommand::new(queue, waits, COMMAND_WRITE_IMAGE)?;
        image_box(image, origin, region, (input_row_pitch, input_slice_pitch), ptr)?
            .allowed(Direction::Out)?
            .write(order, blocking != 0)
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

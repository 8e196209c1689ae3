//! Mapped memory. The program gets memory of its own, filled as the map asks; what it may have written goes back when it
//! unmaps. Objects that use the program's memory are mapped right there, and buffers in memory that the worker has too in
//! that ([`crate::process::host`]): the worker brings such a region up to date itself, if there is anything to be brought.
#![expect(unsafe_code, reason = "lends memory to the program")]

use std::collections::HashMap;
use std::ptr;
use std::sync::Arc;

use katydid_opencl_sys::constant::{
    COMMAND_MAP_BUFFER, COMMAND_MAP_IMAGE, COMMAND_UNMAP_MEM_OBJECT, MAP_READ, MAP_WRITE, MAP_WRITE_INVALIDATE_REGION,
    MEM_OBJECT_IMAGE1D_ARRAY,
};
use katydid_opencl_sys::{Code, cl_command_queue, cl_event, cl_mem, void};
use katydid_wire::codec::Field as _;
use katydid_wire::opencl::extent::{Extent, IMAGE, RUN};
use katydid_wire::opencl::message::{kdclMap, kdclRead, kdclUnmap};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::commands::command;
use crate::commands::pending::PendingCommand;
use crate::commands::transfer::{Transfer, image_box, run, three};
use crate::ffi::returns::write_if_given;
use crate::objects::event;
use crate::objects::handle::object;
use crate::objects::memory::Memory;
use crate::process::shim::shim;
use crate::transfers::pending_reads;
use crate::transfers::rows::{Direction, Rows};

/// Memory lent to the program: pages of their own, aligned as any element wants.
#[derive(Debug)]
struct MappedPages {
    start: usize,
    length: usize,
}

impl MappedPages {
    fn new(length: usize) -> Result<Self, Code> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a fresh mapping at an address of the kernel's choice replaces nothing.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), length, protection, flags) };
        let start = start.map_err(|_| Code::MAP_FAILURE)?.expose_provenance();
        Ok(Self { start, length })
    }
}

impl Drop for MappedPages {
    fn drop(&mut self) {
        if let Ok(shim) = shim() {
            shim.pending_reads.abandon_all(self.start, self.length);
        }
        // SAFETY: mapped by `new`; the program has unmapped it, or its object is gone.
        let _ = unsafe { munmap(ptr::with_exposed_provenance_mut(self.start), self.length) };
    }
}

/// What an unmap does.
#[derive(Debug)]
enum UnmapAction {
    /// Nothing, of a map for reading.
    Nothing,
    /// The form and the extent are written from the region.
    Written(u32, Extent),
    /// The worker does what there is to be done for a region of memory that it has too, which may have been written.
    Shared(Extent, bool),
}

/// One region that is mapped.
#[derive(Debug)]
struct Map {
    back: UnmapAction,
    region: Rows,
    /// The number of the read that fills it ([`crate::transfers::pending_reads`]), if no thread has waited for that; else 0.
    landing: u64,
    /// Kept until it is unmapped; none where the memory is the whole object's or the program's own.
    _lent: Option<MappedPages>,
}

/// What is mapped of an object.
#[derive(Debug, Default)]
pub(crate) struct Maps {
    /// By address; a region may be mapped again.
    regions: HashMap<usize, Vec<Map>>,
    /// The whole buffer's memory, so that maps of one byte agree about it.
    whole: Option<MappedPages>,
}

impl Maps {
    /// Regions that are mapped.
    pub(crate) fn count(&self) -> u32 {
        self.regions.values().map(|maps| maps.len() as u32).sum()
    }

    /// The address of the whole buffer's memory.
    fn whole(&mut self, size: u64) -> Result<usize, Code> {
        if self.whole.is_none() {
            self.whole = Some(MappedPages::new(size as usize)?);
        }
        Ok(self.whole.as_ref().map_or(0, |lent| lent.start))
    }

    fn add(&mut self, map: Map) {
        self.regions.entry(map.region.start).or_default().push(map);
    }

    fn take(&mut self, address: usize) -> Option<Map> {
        let maps = self.regions.get_mut(&address)?;
        let map = maps.pop();
        if maps.is_empty() {
            self.regions.remove(&address);
        }
        map
    }
}

/// Whether the flags fit each other and the object.
fn check(memory: &Memory, flags: u64) -> Result<(), Code> {
    let known = MAP_READ | MAP_WRITE | MAP_WRITE_INVALIDATE_REGION;
    let both = flags & MAP_WRITE_INVALIDATE_REGION != 0 && flags & (MAP_READ | MAP_WRITE) != 0;
    if flags & !known != 0 || both {
        return Err(Code::INVALID_VALUE);
    }
    if flags & MAP_READ != 0 {
        memory.allows(Direction::In)?;
    }
    if flags & !MAP_READ != 0 { memory.allows(Direction::Out) } else { Ok(()) }
}

/// Enqueues the map's command and notes the region.
///
/// # Safety
///
/// The transfer's rows are writable.
unsafe fn map(
    order: PendingCommand,
    transfer: Transfer,
    blocking: bool,
    flags: u64,
    lent: Option<MappedPages>,
) -> Result<usize, Code> {
    let (region, memory) = (transfer.rows, Arc::clone(&transfer.memory));
    let writes = flags & (MAP_WRITE | MAP_WRITE_INVALIDATE_REGION) != 0;
    let back = if writes { UnmapAction::Written(transfer.form, transfer.extent) } else { UnmapAction::Nothing };
    let landing = if flags & MAP_WRITE_INVALIDATE_REGION == 0 {
        // SAFETY: by the contract.
        unsafe { transfer.read(order, blocking)? }
    } else {
        only_command(order, &transfer, blocking)?;
        0
    };
    memory.maps().add(Map { back, region, landing, _lent: lent });
    Ok(region.start)
}

/// Maps a run of a buffer that lies in memory which the worker has too.
fn map_shared(order: PendingCommand, transfer: Transfer, blocking: bool, flags: u64) -> Result<usize, Code> {
    let order = if blocking { order.with_event(COMMAND_MAP_BUFFER)? } else { order };
    let (queue, event, memory) = (order.queue(), order.event(), transfer.memory.base.id);
    let (address, waits) = (transfer.rows.start, transfer.arguments(&order));
    shim()?.link.call(&kdclMap { queue, event, memory, flags, address: address as u64, waits: &waits })?;
    if blocking {
        event::wait_for(&[event])?;
    }
    order.done();
    let back = UnmapAction::Shared(transfer.extent, flags & (MAP_WRITE | MAP_WRITE_INVALIDATE_REGION) != 0);
    transfer.memory.maps().add(Map { back, region: transfer.rows, landing: 0, _lent: None });
    Ok(address)
}

/// The end of such a map.
fn unmap_shared(
    order: PendingCommand,
    memory: &Memory,
    region: Rows,
    extent: Extent,
    writes: bool,
) -> Result<(), Code> {
    if writes {
        pending_reads::wait_for_place(&region)?;
    }
    let mut waits = order.arguments();
    extent.put(&mut waits);
    let (queue, event, address) = (order.queue(), order.event(), region.start as u64);
    let message = kdclUnmap { queue, event, memory: memory.base.id, address, writes: writes.into(), waits: &waits };
    shim()?.link.call(&message)?;
    order.done();
    Ok(())
}

/// A command that is in its place among the others and moves nothing to the program. Who waits for it knows of those before it,
/// too, and so has what they read.
fn only_command(order: PendingCommand, transfer: &Transfer, blocking: bool) -> Result<(), Code> {
    let order = if blocking { order.with_event(COMMAND_MAP_BUFFER)? } else { order };
    let one = Transfer { extent: first_of(transfer), memory: Arc::clone(&transfer.memory), ..*transfer };
    let waits = one.arguments(&order);
    let (queue, event, memory) = (order.queue(), order.event(), transfer.memory.base.id);
    shim()?.link.call(&kdclRead { queue, event, memory, form: one.form, landing: 0, waits: &waits })?;
    if blocking {
        event::wait_for(&[event])?;
    }
    order.done();
    Ok(())
}

/// The first byte, or element, of an extent.
fn first_of(transfer: &Transfer) -> Extent {
    Extent { region: [1, 1, 1], ..transfer.extent }
}

/// # Safety
///
/// Lists are as long as said; `event` is null or writable.
#[expect(clippy::too_many_arguments, reason = "the vendor's signature")]
pub(crate) unsafe fn enqueue_map_buffer(
    queue: cl_command_queue,
    buffer: cl_mem,
    blocking: u32,
    flags: u64,
    offset: usize,
    size: usize,
    count: u32,
    events: *const cl_event,
    event: *mut cl_event,
) -> Result<*mut void, Code> {
    // SAFETY: handed on.
    let order = unsafe { PendingCommand::new(queue, (count, events, event), COMMAND_MAP_BUFFER)? };
    let memory = object::<Memory>(buffer)?;
    check(&memory, flags)?;
    if size == 0 {
        return Err(Code::INVALID_VALUE);
    }
    let start = match (memory.host, memory.shared) {
        (0, 0) => memory.maps().whole(memory.size)?,
        (0, shared) => shared,
        (host, _) => host,
    };
    let place = ptr::with_exposed_provenance_mut::<void>(start.wrapping_add(offset));
    let transfer = run(buffer, offset, size, place)?;
    let address = if memory.shared != 0 {
        map_shared(order, transfer, blocking != 0, flags)?
    } else {
        // SAFETY: the whole buffer's memory, or the program's, holds the region: `run` has checked it.
        unsafe { map(order, transfer, blocking != 0, flags, None)? }
    };
    Ok(ptr::with_exposed_provenance_mut(address))
}

/// # Safety
///
/// Lists are as long as said; origin and region hold three numbers; the other places are null or writable.
#[expect(clippy::too_many_arguments, reason = "the vendor's signature")]
pub(crate) unsafe fn enqueue_map_image(
    queue: cl_command_queue,
    image: cl_mem,
    blocking: u32,
    flags: u64,
    origin: *const usize,
    region: *const usize,
    image_row_pitch: *mut usize,
    image_slice_pitch: *mut usize,
    count: u32,
    events: *const cl_event,
    event: *mut cl_event,
) -> Result<*mut void, Code> {
    // SAFETY: handed on.
    let order = unsafe { PendingCommand::new(queue, (count, events, event), COMMAND_MAP_IMAGE)? };
    let memory = object::<Memory>(image)?;
    let shape = memory.image.ok_or(Code::INVALID_MEM_OBJECT)?;
    check(&memory, flags)?;
    // SAFETY: handed on.
    let (from, size) = unsafe { (three(origin)?, three(region)?) };
    shape.check(from, size)?;
    if image_row_pitch.is_null() || (image_slice_pitch.is_null() && shape.has_slices()) {
        return Err(Code::INVALID_VALUE);
    }
    let (start, row, slice, lent) = if memory.host == 0 {
        let row = size[0].checked_mul(shape.element).ok_or(Code::INVALID_VALUE)?;
        let slice = row.checked_mul(size[1]).ok_or(Code::INVALID_VALUE)?;
        let lent = MappedPages::new(slice.checked_mul(size[2]).ok_or(Code::INVALID_VALUE)?.max(1))?;
        let slice = if shape.kind == MEM_OBJECT_IMAGE1D_ARRAY { row } else { slice };
        (lent.start, row, slice, Some(lent))
    } else {
        let start = memory.host + from[2] * shape.slice + from[1] * shape.line() + from[0] * shape.element;
        (start, shape.row, shape.slice, None)
    };
    let place = ptr::with_exposed_provenance::<void>(start);
    // SAFETY: handed on.
    let transfer = unsafe { image_box(image, origin, region, (row, slice), place)? };
    // SAFETY: memory of this region's own, or the program's, which holds the whole image.
    let address = unsafe { map(order, transfer, blocking != 0, flags, lent)? };
    // SAFETY: by the contract.
    unsafe {
        write_if_given(image_row_pitch, row);
        write_if_given(image_slice_pitch, if shape.has_slices() { slice } else { 0 });
    }
    Ok(ptr::with_exposed_provenance_mut(address))
}

/// # Safety
///
/// Lists are as long as said; `event` is null or writable; no thread uses the region any more.
pub(crate) unsafe fn enqueue_unmap_mem_object(
    queue: cl_command_queue,
    memobj: cl_mem,
    mapped_ptr: *mut void,
    count: u32,
    events: *const cl_event,
    event: *mut cl_event,
) -> Result<(), Code> {
    // SAFETY: handed on.
    let order = unsafe { PendingCommand::new(queue, (count, events, event), COMMAND_UNMAP_MEM_OBJECT)? };
    let memory = object::<Memory>(memobj)?;
    if order.queue.context.base.id != memory.context.base.id {
        return Err(Code::INVALID_CONTEXT);
    }
    let mut map = memory.maps().take(mapped_ptr.addr()).ok_or(Code::INVALID_VALUE)?;
    // Who gives a region back before it is known to be there cannot have changed it, unless by a command.
    if shim()?.pending_reads.abandon(map.landing, &map.region) && matches!(map.back, UnmapAction::Written(..)) {
        map.back = UnmapAction::Nothing;
    }
    // SAFETY: the region is still the program's, and lent until `map` is dropped.
    let unmapped = unsafe { unmap(order, &memory, &map) };
    // What is refused is mapped as before.
    unmapped.inspect_err(|_| memory.maps().add(map))
}

/// Enqueues the end of a map.
///
/// # Safety
///
/// The region is readable.
unsafe fn unmap(order: PendingCommand, memory: &Arc<Memory>, map: &Map) -> Result<(), Code> {
    let (memory, rows) = (Arc::clone(memory), map.region);
    match map.back {
        UnmapAction::Written(form, extent) => {
            // SAFETY: by the contract.
            unsafe { Transfer { memory, form, extent, rows }.write(order, false) }
        }
        UnmapAction::Shared(extent, writes) => unmap_shared(order, &memory, rows, extent, writes),
        UnmapAction::Nothing => unmapped(order, memory),
    }
}

/// The command of an unmap that brings nothing back.
fn unmapped(order: PendingCommand, memory: Arc<Memory>) -> Result<(), Code> {
    // No event tells of the command, and it waits for none: no thread can find that it is not there.
    if order.event() == 0 && !order.has_waits() {
        order.skipped();
        return Ok(());
    }
    // In a queue without order a marker would wait for all others.
    if order.queue.is_in_order() {
        return command::mark(order, false);
    }
    let form = if memory.image.is_some() { IMAGE } else { RUN };
    let extent = Extent { region: [1, 1, 1], ..Default::default() };
    only_command(order, &Transfer { memory, form, extent, rows: Rows::run(0, 0) }, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_counted_until_each_is_unmapped() {
        let mut maps = Maps::default();
        let whole = maps.whole(100).unwrap();
        assert_eq!(maps.whole(100), Ok(whole));
        for _ in 0..2 {
            maps.add(Map { back: UnmapAction::Nothing, region: Rows::run(whole, 100), landing: 0, _lent: None });
        }
        assert_eq!(maps.count(), 2);
        assert!(maps.take(whole).is_some() && maps.take(whole).is_some() && maps.take(whole).is_none());
        assert_eq!(maps.count(), 0);
    }
}

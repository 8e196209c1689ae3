//! Mapped memory. A map gives the program memory that is filled as requested; an unmap writes back what the program may have
//! written. Objects that use the program's memory are mapped in that memory. Buffers in memory that the worker shares
//! ([`crate::host::arena`]) are mapped there, and the worker itself updates such a region if needed.
#![expect(unsafe_code, reason = "lends memory to the program")]

use std::ptr;
use std::sync::Arc;

use katydid_client::ffi::write_optional;
use katydid_opencl_sys::constant::{
    COMMAND_MAP_BUFFER, COMMAND_MAP_IMAGE, COMMAND_UNMAP_MEM_OBJECT, MAP_READ, MAP_WRITE, MAP_WRITE_INVALIDATE_REGION,
    MEM_OBJECT_IMAGE1D_ARRAY,
};
use katydid_opencl_sys::{Code, cl_command_queue, cl_event, cl_mem, void};
use katydid_wire::codec::Field as _;
use katydid_wire::opencl::message::{kdclMap, kdclRead, kdclUnmap};
use katydid_wire::opencl::transfer_extent::{BUFFER_RUN, IMAGE_BOX, TransferExtent};

use crate::commands::transfer::{self, image_box, run};
use crate::commands::{command, map_in_place};
use crate::ffi::arguments::three;
use crate::host::mapped_pages::{MappedPages, Shown};
use crate::host::pending_reads::{self, PENDING_READS};
use crate::host::rows::{Direction, Rows};
use crate::objects::event;
use crate::objects::handle::object;
use crate::objects::maps::{Map, UnmapAction};
use crate::objects::memory::Memory;
use crate::objects::pending_command::PendingCommand;
use crate::process::session;
use crate::transfers::images_in_place;
use crate::transfers::transfer::Transfer;

/// Refuses invalid flags. OpenCL has no maps that read or write and also leave the bytes undefined, but drivers accept such
/// flags.
fn check_flags(flags: u64) -> Result<(), Code> {
    let valid_flags = MAP_READ | MAP_WRITE | MAP_WRITE_INVALIDATE_REGION;
    if flags & !valid_flags == 0 { Ok(()) } else { Err(Code::INVALID_VALUE) }
}

/// Checks that the program may access the object as the flags say. Drivers check this after the region.
fn check_access(memory: &Memory, flags: u64) -> Result<(), Code> {
    if flags & MAP_READ != 0 {
        memory.allows(Direction::In)?;
    }
    if flags & !MAP_READ != 0 { memory.allows(Direction::Out) } else { Ok(()) }
}

/// Returns whether a map leaves the bytes undefined.
fn is_undefined(flags: u64) -> bool {
    flags & (MAP_READ | MAP_WRITE | MAP_WRITE_INVALIDATE_REGION) == MAP_WRITE_INVALIDATE_REGION
}

/// Where a region will be mapped.
struct MapTarget {
    /// The region's own pages; `None` if the memory is the whole object's or the program's.
    pages: Option<MappedPages>,
    /// Whether the pages already hold the region's bytes.
    is_filled: bool,
    /// What the region shows once it is filled, if that can be known later.
    shows: Option<Shown>,
}

impl MapTarget {
    /// Returns pages for an image region of `bytes` bytes: pages that already show it, or others.
    fn of_image(shows: Option<Shown>, bytes: usize) -> Result<Self, Code> {
        let shown = shows.as_ref().and_then(MappedPages::showing);
        let is_filled = shown.is_some();
        let pages = shown.map_or_else(|| MappedPages::new(bytes), Ok)?;
        Ok(Self { pages: Some(pages), is_filled, shows })
    }
}

/// Returns what a region shows once a command of this queue has mapped it.
fn mapped_contents(memory: &Memory, command: &PendingCommand, extent: TransferExtent) -> Option<Shown> {
    let version = memory.version(&command.queue)?;
    Some(Shown { object: memory.contents.number, version, extent })
}

/// Enqueues the map's command and registers the region.
///
/// # Safety
///
/// The transfer's rows are writable.
unsafe fn map(
    command: PendingCommand,
    transfer: Transfer,
    blocking: bool,
    flags: u64,
    target: MapTarget,
) -> Result<usize, Code> {
    let (region, memory) = (transfer.rows, Arc::clone(&transfer.memory));
    let writes = flags & (MAP_WRITE | MAP_WRITE_INVALIDATE_REGION) != 0;
    let back = if writes { UnmapAction::Written(transfer.form, transfer.extent) } else { UnmapAction::Nothing };
    let read_number = if target.is_filled || is_undefined(flags) || memory.contents.are_undefined() {
        only_command(command, &transfer, blocking)?;
        0
    } else {
        // SAFETY: by the contract.
        unsafe { transfer::read(&transfer, command, blocking)? }
    };
    // Bytes of a pending read may not have arrived when the region is unmapped.
    let shows = target.shows.filter(|_| read_number == 0);
    memory.maps().add(Map { back, region, read_number, pages: target.pages, shows });
    Ok(region.start)
}

/// Maps a run of a buffer that lies in memory shared with the worker.
fn map_shared(command: PendingCommand, transfer: Transfer, blocking: bool, flags: u64) -> Result<usize, Code> {
    let command = if blocking { command.with_event(COMMAND_MAP_BUFFER)? } else { command };
    let (queue, event, memory) = (command.queue(), command.event(), transfer.memory.base.id);
    let (address, waits) = (transfer.rows.start, transfer.arguments(&command));
    session::call(&kdclMap { queue, event, memory, flags, address: address as u64, waits: &waits })?;
    if blocking {
        event::wait_for(&[event])?;
    }
    command.publish();
    let back = UnmapAction::Shared(transfer.extent, flags & (MAP_WRITE | MAP_WRITE_INVALIDATE_REGION) != 0);
    transfer.memory.maps().add(Map { back, region: transfer.rows, read_number: 0, pages: None, shows: None });
    Ok(address)
}

/// Unmaps such a run.
fn unmap_shared(
    command: PendingCommand,
    memory: &Memory,
    region: Rows,
    extent: TransferExtent,
    writes: bool,
) -> Result<(), Code> {
    if writes {
        pending_reads::wait_for_overlapping(&region)?;
    }
    let mut waits = command.arguments();
    extent.put(&mut waits);
    let (queue, event, address) = (command.queue(), command.event(), region.start as u64);
    let message = kdclUnmap { queue, event, memory: memory.base.id, address, writes: writes.into(), waits: &waits };
    session::call(&message)?;
    command.publish();
    Ok(())
}

/// Enqueues a command that takes its place in the order, but moves nothing to the program. A thread that waits for it also learns
/// the end of earlier commands, and so gets the data that they read.
fn only_command(command: PendingCommand, transfer: &Transfer, blocking: bool) -> Result<(), Code> {
    if command.can_be_skipped(blocking) {
        command.skipped();
        return if blocking { transfer::deliver() } else { Ok(()) };
    }
    let element = transfer.memory.image.map_or(1, |shape| shape.element);
    let mut scratch = vec![0u8; element];
    let rows = Rows::run(scratch.as_mut_ptr().expose_provenance(), element);
    let first = Transfer { extent: first_of(transfer), memory: Arc::clone(&transfer.memory), rows, ..*transfer };
    if blocking {
        // SAFETY: room for one element, which nothing else uses.
        return unsafe { transfer::read_now(&first, command) };
    }
    let waits = first.arguments(&command);
    let (queue, event, memory) = (command.queue(), command.event(), transfer.memory.base.id);
    session::call(&kdclRead { queue, event, memory, form: first.form, read_number: 0, waits: &waits })?;
    command.publish();
    Ok(())
}

/// Returns the first byte or element of an extent.
fn first_of(transfer: &Transfer) -> TransferExtent {
    TransferExtent { region: [1, 1, 1], ..transfer.extent }
}

/// # Safety
///
/// Lists have their stated lengths; `event` is null or writable.
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
    let memory = object::<Memory>(buffer)?;
    if !memory.is_buffer() {
        return Err(Code::INVALID_MEM_OBJECT);
    }
    check_flags(flags)?;
    if size == 0 {
        return Err(Code::INVALID_VALUE);
    }
    let start = match (memory.host, memory.shared) {
        (0, 0) => memory.maps().whole(memory.size)?,
        (0, shared) => shared,
        (host, _) => host,
    };
    let pointer = ptr::with_exposed_provenance_mut::<void>(start.wrapping_add(offset));
    let transfer = run(buffer, offset, size, pointer)?;
    check_access(&memory, flags)?;
    // SAFETY: handed on.
    let command = unsafe { PendingCommand::new(queue, (count, events, event), COMMAND_MAP_BUFFER)? };
    let address = if memory.shared != 0 {
        map_shared(command, transfer, blocking != 0, flags)?
    } else {
        let shows = mapped_contents(&memory, &command, transfer.extent);
        let is_filled = shows.as_ref().is_some_and(|shows| memory.maps().shows(&transfer.rows, shows.version));
        // SAFETY: `run` has checked that the whole buffer's memory, or the program's, contains the region.
        unsafe { map(command, transfer, blocking != 0, flags, MapTarget { pages: None, is_filled, shows })? }
    };
    Ok(ptr::with_exposed_provenance_mut(address))
}

/// # Safety
///
/// Lists have their stated lengths; origin and region hold three numbers; the other pointers are null or writable.
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
    let memory = object::<Memory>(image)?;
    let shape = memory.image.ok_or(Code::INVALID_MEM_OBJECT)?;
    check_flags(flags)?;
    // SAFETY: guaranteed by the caller.
    let (from, size) = unsafe { (three(origin)?, three(region)?) };
    shape.check(from, size)?;
    if size.contains(&0) {
        return Err(Code::INVALID_VALUE);
    }
    check_access(&memory, flags)?;
    if image_row_pitch.is_null() || (image_slice_pitch.is_null() && shape.has_slices()) {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: handed on.
    let command = unsafe { PendingCommand::new(queue, (count, events, event), COMMAND_MAP_IMAGE)? };
    if memory.shared != 0 {
        let (row, slice) = images_in_place::packed(&shape);
        // SAFETY: guaranteed by the caller.
        let address = unsafe { map_in_place::map(command, (image, &memory), blocking != 0, flags, (origin, region))? };
        // SAFETY: by the contract.
        unsafe {
            write_optional(image_row_pitch, row);
            write_optional(image_slice_pitch, if shape.has_slices() { slice } else { 0 });
        }
        return Ok(ptr::with_exposed_provenance_mut(address));
    }
    let (row, slice) = if memory.host == 0 {
        let row = size[0].checked_mul(shape.element).ok_or(Code::INVALID_VALUE)?;
        let slice = row.checked_mul(size[1]).ok_or(Code::INVALID_VALUE)?;
        (row, if shape.kind == MEM_OBJECT_IMAGE1D_ARRAY { row } else { slice })
    } else {
        (shape.row, shape.slice)
    };
    let in_host = memory.host + from[2] * shape.slice + from[1] * shape.line() + from[0] * shape.element;
    // SAFETY: guaranteed by the caller. The address of new pages is not known yet.
    let mut transfer =
        unsafe { image_box(image, origin, region, (row, slice), ptr::without_provenance(in_host.max(1)))? };
    let target = if memory.host == 0 {
        MapTarget::of_image(mapped_contents(&memory, &command, transfer.extent), transfer.rows.len())?
    } else {
        MapTarget { pages: None, is_filled: false, shows: None }
    };
    transfer.rows.start = target.pages.as_ref().map_or(in_host, |pages| pages.start);
    // SAFETY: memory of this region alone, or the program's, which contains the whole image.
    let address = unsafe { map(command, transfer, blocking != 0, flags, target)? };
    // SAFETY: by the contract.
    unsafe {
        write_optional(image_row_pitch, row);
        write_optional(image_slice_pitch, if shape.has_slices() { slice } else { 0 });
    }
    Ok(ptr::with_exposed_provenance_mut(address))
}

/// # Safety
///
/// Lists have their stated lengths; `event` is null or writable; no thread uses the region any more.
pub(crate) unsafe fn enqueue_unmap_mem_object(
    queue: cl_command_queue,
    memobj: cl_mem,
    mapped_ptr: *mut void,
    count: u32,
    events: *const cl_event,
    event: *mut cl_event,
) -> Result<(), Code> {
    let memory = object::<Memory>(memobj)?;
    // SAFETY: handed on.
    let command = unsafe { PendingCommand::new(queue, (count, events, event), COMMAND_UNMAP_MEM_OBJECT)? };
    if command.queue.context.base.id != memory.context.base.id {
        return Err(Code::INVALID_CONTEXT);
    }
    let mut map = memory.maps().take(mapped_ptr.addr()).ok_or(Code::INVALID_VALUE)?;
    // A program that unmaps a region before its bytes have arrived can have changed it only by a command.
    if PENDING_READS.abandon(map.read_number, &map.region) && matches!(map.back, UnmapAction::Written(..)) {
        map.back = UnmapAction::Nothing;
    }
    // SAFETY: the region belongs to the program until `map` is dropped.
    let unmapped = unsafe { unmap(command, &memory, &map) };
    match unmapped {
        Ok(()) => note_unmapped(&memory, map),
        // A region whose unmap is refused stays mapped.
        Err(_) => memory.maps().add(map),
    }
    unmapped
}

/// Records what an unmapped region shows, if only its unmap has changed the object since the map.
fn note_unmapped(memory: &Memory, mut map: Map) {
    let Some(mut shown) = map.shows.take() else { return };
    if matches!(map.back, UnmapAction::Written(..)) {
        shown.version = shown.version.after_write();
    }
    if memory.contents.version(memory.context.launches()) != Some(shown.version) {
        return;
    }
    match &mut map.pages {
        Some(pages) => pages.shown = Some(shown),
        None => memory.maps().note_unmapped(&map.region, shown.version),
    }
}

/// Enqueues the unmap of a region.
///
/// # Safety
///
/// The region is readable.
unsafe fn unmap(command: PendingCommand, memory: &Arc<Memory>, map: &Map) -> Result<(), Code> {
    let (memory, rows) = (Arc::clone(memory), map.region);
    match map.back {
        UnmapAction::Written(form, extent) => {
            // SAFETY: by the contract.
            unsafe { transfer::write(&Transfer { memory, form, extent, rows }, command, false) }
        }
        UnmapAction::Shared(extent, writes) => unmap_shared(command, &memory, rows, extent, writes),
        UnmapAction::InPlace(extent, writes) => {
            let transfer = Transfer { memory: Arc::clone(&memory), form: IMAGE_BOX, extent, rows };
            map_in_place::unmap(command, &transfer, writes)?.map_or(Ok(()), |command| unmapped(command, memory))
        }
        UnmapAction::Nothing => unmapped(command, memory),
    }
}

/// Enqueues an unmap that writes nothing back.
fn unmapped(command: PendingCommand, memory: Arc<Memory>) -> Result<(), Code> {
    if command.can_be_skipped(false) {
        command.skipped();
        return Ok(());
    }
    // In an out-of-order queue a marker would wait for all other commands.
    if command.queue.is_in_order() {
        return command::mark(command, false);
    }
    let form = if memory.image.is_some() { IMAGE_BOX } else { BUFFER_RUN };
    let extent = TransferExtent { region: [1, 1, 1], ..Default::default() };
    only_command(command, &Transfer { memory, form, extent, rows: Rows::run(0, 0) }, false)
}

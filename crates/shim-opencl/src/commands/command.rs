//! Commands that move no data between program and device: copies, fills, markers, barriers.
#![expect(unsafe_code, reason = "reads and writes through the pointers of C callers")]

use katydid_opencl_sys::constant::{
    COMMAND_BARRIER, COMMAND_COPY_BUFFER, COMMAND_COPY_BUFFER_RECT, COMMAND_COPY_BUFFER_TO_IMAGE, COMMAND_COPY_IMAGE,
    COMMAND_COPY_IMAGE_TO_BUFFER, COMMAND_FILL_BUFFER, COMMAND_FILL_IMAGE, COMMAND_MARKER, COMMAND_MIGRATE_MEM_OBJECTS,
};
use katydid_opencl_sys::{Code, cl_command_queue, cl_event, cl_mem, void};
use katydid_wire::codec::Field as _;
use katydid_wire::opencl::list as lists;
use katydid_wire::opencl::message::{kdclCopy, kdclFill, kdclMarker, kdclMigrate};
use katydid_wire::opencl::transfer_extent::{BUFFER_BOX, BUFFER_RUN, IMAGE_BOX, TransferExtent};

use crate::ffi::arguments::{list, three};
use crate::objects::handle::{ids, object, objects};
use crate::objects::memory::Memory;
use crate::objects::pending_command::{PendingCommand, waits};
use crate::objects::queue::{ImageCommand, InfallibleCommand, Queue};
use crate::process::session;

type WaitList = (u32, *const cl_event, *mut cl_event);

/// Returns the extent of a box at an origin.
fn extent(origin: [usize; 3], region: [usize; 3], (row, slice): (usize, usize)) -> TransferExtent {
    let numbers = |numbers: [usize; 3]| numbers.map(|number| number as u64);
    TransferExtent { origin: numbers(origin), region: numbers(region), row: row as u64, slice: slice as u64 }
}

/// Returns the extent of a box of an image. It does not check that the memory is an image; a later step does.
///
/// # Safety
///
/// The origin is null or holds three numbers, and four of an image with levels.
unsafe fn image_extent(image: cl_mem, origin: *const usize, region: [usize; 3]) -> Result<TransferExtent, Code> {
    // SAFETY: guaranteed by the caller.
    let start = unsafe { three(origin)? };
    let shape = object::<Memory>(image)?.image;
    // SAFETY: not null, and by the contract.
    let level = shape.map_or(0, |shape| unsafe { shape.level(origin) });
    Ok(extent(start, region, (level, 0)))
}

/// Refuses a wrong list of events: drivers look at it before they look at the objects of fills and migrations.
///
/// # Safety
///
/// `events` is null or holds `count` handles.
unsafe fn check_waits(queue: cl_command_queue, count: u32, events: *const cl_event) -> Result<(), Code> {
    // SAFETY: handed on.
    unsafe { waits(&*object::<Queue>(queue)?, count, events).map(drop) }
}

/// Enqueues a copy between two objects; each side is a form and an extent. Drivers look at those before they look at the events
/// that are waited for.
///
/// # Safety
///
/// As [`PendingCommand::new`].
unsafe fn copy(
    (queue, waits, command_type): (cl_command_queue, WaitList, u32),
    from: (cl_mem, u32, TransferExtent),
    to: (cl_mem, u32, TransferExtent),
) -> Result<(), Code> {
    let (source, destination) = (object::<Memory>(from.0)?, object::<Memory>(to.0)?);
    for (memory, form) in [(&source, from.1), (&destination, to.1)] {
        if memory.is_buffer() != (form != IMAGE_BOX) {
            return Err(Code::INVALID_MEM_OBJECT);
        }
    }
    // A driver may not check sizes that exceed the address space, and so may end the worker.
    if [(&source, &from), (&destination, &to)]
        .iter()
        .any(|(memory, side)| side.1 == BUFFER_RUN && !memory.holds(&side.2))
    {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: handed on.
    let command = unsafe { PendingCommand::new(queue, waits, command_type)? };
    let mut waits = command.arguments();
    from.2.put(&mut waits);
    to.2.put(&mut waits);
    let (queue, event, form) = (command.queue(), command.event(), from.1 | to.1 << 4);
    let ids = (source.base.id, destination.base.id);
    let message = kdclCopy { queue, event, source: ids.0, destination: ids.1, form, waits: &waits };
    if cannot_be_refused(&command, (&source, from.1, &from.2), (&destination, to.1, &to.2)) {
        session::enqueue(&message)?;
    } else {
        session::call(&message)?;
        source.accepted(&command);
        destination.accepted(&command);
        let images = [source.image_kind(), destination.image_kind()];
        if images != [None; 2] {
            command.queue.accepted_images(command.worker, ImageCommand::Copy, images);
        }
    }
    destination.contents.written();
    command.publish();
    Ok(())
}

/// Returns whether a copy between two objects, each with its form and extent, cannot fail.
fn cannot_be_refused(
    command: &PendingCommand,
    from: (&Memory, u32, &TransferExtent),
    to: (&Memory, u32, &TransferExtent),
) -> bool {
    let is_same = from.0.base.id == to.0.base.id;
    let images = [from.0.image_kind(), to.0.image_kind()];
    match (from.1, to.1) {
        (BUFFER_RUN, BUFFER_RUN) => {
            let (start, end, size) = (from.2.origin[0], to.2.origin[0], from.2.region[0]);
            let overlaps = is_same && start.abs_diff(end) < size;
            from.0.cannot_be_refused(command, start, size) && to.0.cannot_be_refused(command, end, size) && !overlaps
        }
        // The driver compares boxes of the same image with each other, and the pitches of buffers too.
        _ if is_same || images == [None; 2] => false,
        _ if !command.queue.has_accepted_images(command.worker, ImageCommand::Copy, images) => false,
        (IMAGE_BOX, IMAGE_BOX) => {
            from.0.box_cannot_be_refused(command, from.2) && to.0.box_cannot_be_refused(command, to.2)
        }
        (IMAGE_BOX, _) => mixed_copy_cannot_be_refused(command, (from.0, from.2), (to.0, to.2)),
        _ => mixed_copy_cannot_be_refused(command, (to.0, to.2), (from.0, from.2)),
    }
}

/// Returns whether a copy between a box of an image and a run of a buffer of the same length cannot fail.
fn mixed_copy_cannot_be_refused(
    command: &PendingCommand,
    image: (&Memory, &TransferExtent),
    buffer: (&Memory, &TransferExtent),
) -> bool {
    let element = image.0.image.map_or(0, |shape| shape.element as u64);
    let size = image.1.bytes(element).unwrap_or(u64::MAX);
    image.0.box_cannot_be_refused(command, image.1) && buffer.0.cannot_be_refused(command, buffer.1.origin[0], size)
}

/// # Safety
///
/// Lists have their stated lengths; `event` is null or writable.
#[expect(clippy::too_many_arguments, reason = "the vendor's signature")]
pub(crate) unsafe fn enqueue_copy_buffer(
    queue: cl_command_queue,
    src_buffer: cl_mem,
    dst_buffer: cl_mem,
    src_offset: usize,
    dst_offset: usize,
    size: usize,
    count: u32,
    events: *const cl_event,
    event: *mut cl_event,
) -> Result<(), Code> {
    // Drivers look at the length of the list first here, and at what is in it later.
    if (count == 0) != events.is_null() {
        return Err(Code::INVALID_EVENT_WAIT_LIST);
    }
    let command = (queue, (count, events, event), COMMAND_COPY_BUFFER);
    let part = |offset: usize| TransferExtent::run(offset as u64, size as u64);
    let (source, destination) = (part(src_offset), part(dst_offset));
    // SAFETY: handed on.
    unsafe { copy(command, (src_buffer, BUFFER_RUN, source), (dst_buffer, BUFFER_RUN, destination)) }
}

/// # Safety
///
/// Lists have their stated lengths, boxes have three numbers; `event` is null or writable.
#[expect(clippy::too_many_arguments, reason = "the vendor's signature")]
pub(crate) unsafe fn enqueue_copy_buffer_rect(
    queue: cl_command_queue,
    src_buffer: cl_mem,
    dst_buffer: cl_mem,
    src_origin: *const usize,
    dst_origin: *const usize,
    region: *const usize,
    src_row_pitch: usize,
    src_slice_pitch: usize,
    dst_row_pitch: usize,
    dst_slice_pitch: usize,
    count: u32,
    events: *const cl_event,
    event: *mut cl_event,
) -> Result<(), Code> {
    let command = (queue, (count, events, event), COMMAND_COPY_BUFFER_RECT);
    // SAFETY: handed on.
    let (from, to, size) = unsafe { (three(src_origin)?, three(dst_origin)?, three(region)?) };
    let source = extent(from, size, (src_row_pitch, src_slice_pitch));
    let destination = extent(to, size, (dst_row_pitch, dst_slice_pitch));
    // SAFETY: handed on.
    unsafe { copy(command, (src_buffer, BUFFER_BOX, source), (dst_buffer, BUFFER_BOX, destination)) }
}

/// # Safety
///
/// Lists have their stated lengths, boxes have three numbers; `event` is null or writable.
#[expect(clippy::too_many_arguments, reason = "the vendor's signature")]
pub(crate) unsafe fn enqueue_copy_image(
    queue: cl_command_queue,
    src_image: cl_mem,
    dst_image: cl_mem,
    src_origin: *const usize,
    dst_origin: *const usize,
    region: *const usize,
    count: u32,
    events: *const cl_event,
    event: *mut cl_event,
) -> Result<(), Code> {
    let command = (queue, (count, events, event), COMMAND_COPY_IMAGE);
    // SAFETY: handed on.
    unsafe {
        let size = three(region)?;
        let (source, destination) =
            (image_extent(src_image, src_origin, size)?, image_extent(dst_image, dst_origin, size)?);
        copy(command, (src_image, IMAGE_BOX, source), (dst_image, IMAGE_BOX, destination))
    }
}

/// # Safety
///
/// Lists have their stated lengths, boxes have three numbers; `event` is null or writable.
#[expect(clippy::too_many_arguments, reason = "the vendor's signature")]
pub(crate) unsafe fn enqueue_copy_image_to_buffer(
    queue: cl_command_queue,
    src_image: cl_mem,
    dst_buffer: cl_mem,
    src_origin: *const usize,
    region: *const usize,
    dst_offset: usize,
    count: u32,
    events: *const cl_event,
    event: *mut cl_event,
) -> Result<(), Code> {
    let command = (queue, (count, events, event), COMMAND_COPY_IMAGE_TO_BUFFER);
    let destination = TransferExtent::run(dst_offset as u64, 0);
    // SAFETY: handed on.
    unsafe {
        let source = image_extent(src_image, src_origin, three(region)?)?;
        copy(command, (src_image, IMAGE_BOX, source), (dst_buffer, BUFFER_RUN, destination))
    }
}

/// # Safety
///
/// Lists have their stated lengths, boxes have three numbers; `event` is null or writable.
#[expect(clippy::too_many_arguments, reason = "the vendor's signature")]
pub(crate) unsafe fn enqueue_copy_buffer_to_image(
    queue: cl_command_queue,
    src_buffer: cl_mem,
    dst_image: cl_mem,
    src_offset: usize,
    dst_origin: *const usize,
    region: *const usize,
    count: u32,
    events: *const cl_event,
    event: *mut cl_event,
) -> Result<(), Code> {
    let command = (queue, (count, events, event), COMMAND_COPY_BUFFER_TO_IMAGE);
    let source = TransferExtent::run(src_offset as u64, 0);
    // SAFETY: handed on.
    unsafe {
        let destination = image_extent(dst_image, dst_origin, three(region)?)?;
        copy(command, (src_buffer, BUFFER_RUN, source), (dst_image, IMAGE_BOX, destination))
    }
}

/// Enqueues a fill: waits, extent, pattern.
///
/// # Safety
///
/// As [`PendingCommand::new`].
unsafe fn fill(
    (queue, waits, command_type): (cl_command_queue, WaitList, u32),
    memory: cl_mem,
    form: u32,
    extent: TransferExtent,
    pattern: &[u8],
) -> Result<(), Code> {
    let memory = object::<Memory>(memory)?;
    if memory.is_buffer() != (form != IMAGE_BOX) {
        return Err(Code::INVALID_MEM_OBJECT);
    }
    // SAFETY: handed on.
    let command = unsafe { PendingCommand::new(queue, waits, command_type)? };
    let mut waits = command.arguments();
    extent.put(&mut waits);
    waits.extend_from_slice(pattern);
    let (queue, event, length) = (command.queue(), command.event(), pattern.len() as u32);
    let message = kdclFill { queue, event, memory: memory.base.id, form, patternSize: length, waits: &waits };
    let cannot_be_refused = match memory.image {
        Some(_) => {
            command.queue.has_accepted_images(command.worker, ImageCommand::Fill, [memory.image_kind(), None])
                && memory.box_cannot_be_refused(&command, &extent)
        }
        None => {
            command.queue.has_accepted(command.worker, InfallibleCommand::Fill)
                && fill_cannot_be_refused(&command, &memory, &extent, pattern)
        }
    };
    if cannot_be_refused {
        session::enqueue(&message)?;
    } else {
        session::call(&message)?;
        memory.accepted(&command);
        match memory.image {
            Some(_) => command.queue.accepted_images(command.worker, ImageCommand::Fill, [memory.image_kind(), None]),
            None => command.queue.accepted(command.worker, InfallibleCommand::Fill),
        }
    }
    memory.contents.written();
    command.publish();
    Ok(())
}

/// Returns whether the fill of a run cannot fail.
fn fill_cannot_be_refused(command: &PendingCommand, memory: &Memory, run: &TransferExtent, pattern: &[u8]) -> bool {
    let (offset, size, length) = (run.origin[0], run.region[0], pattern.len() as u64);
    let is_whole = length.is_power_of_two() && offset.is_multiple_of(length) && size.is_multiple_of(length);
    is_whole && memory.cannot_be_refused(command, offset, size)
}

/// # Safety
///
/// Lists have their stated lengths, the pattern is readable; `event` is null or writable.
#[expect(clippy::too_many_arguments, reason = "the vendor's signature")]
pub(crate) unsafe fn enqueue_fill_buffer(
    queue: cl_command_queue,
    buffer: cl_mem,
    pattern: *const void,
    pattern_size: usize,
    offset: usize,
    size: usize,
    count: u32,
    events: *const cl_event,
    event: *mut cl_event,
) -> Result<(), Code> {
    /// Bytes of the largest type: a vector of sixteen 8-byte elements.
    const MAX_PATTERN_BYTES: usize = 128;
    // SAFETY: handed on.
    unsafe { check_waits(queue, count, events)? };
    if pattern.is_null() || pattern_size == 0 || pattern_size > MAX_PATTERN_BYTES {
        return Err(Code::INVALID_VALUE);
    }
    let (command, run) =
        ((queue, (count, events, event), COMMAND_FILL_BUFFER), TransferExtent::run(offset as u64, size as u64));
    // SAFETY: handed on.
    unsafe { fill(command, buffer, BUFFER_RUN, run, list(pattern_size, pattern.cast::<u8>())) }
}

/// # Safety
///
/// Lists have their stated lengths, the color has four words; `event` is null or writable.
#[expect(clippy::too_many_arguments, reason = "the vendor's signature")]
pub(crate) unsafe fn enqueue_fill_image(
    queue: cl_command_queue,
    image: cl_mem,
    fill_color: *const void,
    origin: *const usize,
    region: *const usize,
    count: u32,
    events: *const cl_event,
    event: *mut cl_event,
) -> Result<(), Code> {
    // SAFETY: handed on.
    unsafe {
        check_waits(queue, count, events)?;
        let (area, color) = (image_extent(image, origin, three(region)?)?, list(16, fill_color.cast::<u8>()));
        if color.is_empty() {
            return Err(Code::INVALID_VALUE);
        }
        fill((queue, (count, events, event), COMMAND_FILL_IMAGE), image, IMAGE_BOX, area, color)
    }
}

/// # Safety
///
/// Lists have their stated lengths; `event` is null or writable.
pub(crate) unsafe fn enqueue_migrate_mem_objects(
    queue: cl_command_queue,
    num_mem_objects: u32,
    mem_objects: *const cl_mem,
    flags: u64,
    count: u32,
    events: *const cl_event,
    event: *mut cl_event,
) -> Result<(), Code> {
    // SAFETY: handed on.
    let handles = unsafe {
        check_waits(queue, count, events)?;
        list(num_mem_objects as usize, mem_objects)
    };
    if handles.is_empty() {
        return Err(Code::INVALID_VALUE);
    }
    let objects = objects::<Memory>(handles)?;
    // SAFETY: handed on.
    let command = unsafe { PendingCommand::new(queue, (count, events, event), COMMAND_MIGRATE_MEM_OBJECTS)? };
    let mut waits = command.arguments();
    lists::put(&mut waits, &ids(&objects));
    let message = kdclMigrate { queue: command.queue(), event: command.event(), flags, waits: &waits };
    session::call(&message)?;
    command.publish();
    Ok(())
}

/// Enqueues a marker or a barrier.
pub(crate) fn mark(command: PendingCommand, barrier: bool) -> Result<(), Code> {
    let (waits, kind) =
        (command.arguments(), if barrier { InfallibleCommand::Barrier } else { InfallibleCommand::Marker });
    let message = kdclMarker { queue: command.queue(), event: command.event(), barrier: barrier.into(), waits: &waits };
    if !command.has_waits() && command.queue.has_accepted(command.worker, kind) {
        session::enqueue(&message)?;
    } else {
        session::call(&message)?;
        command.queue.accepted(command.worker, kind);
    }
    command.publish();
    Ok(())
}

/// Enqueues a marker, and runs `then` before its event may complete.
pub(crate) fn mark_with(command: PendingCommand, then: impl FnOnce() -> Result<(), Code>) -> Result<(), Code> {
    let waits = command.arguments();
    let message = kdclMarker { queue: command.queue(), event: command.event(), barrier: 0, waits: &waits };
    session::call(&message)?;
    then()?;
    command.publish();
    Ok(())
}

/// # Safety
///
/// Lists have their stated lengths; `event` is null or writable.
pub(crate) unsafe fn enqueue_marker_with_wait_list(
    queue: cl_command_queue,
    count: u32,
    events: *const cl_event,
    event: *mut cl_event,
) -> Result<(), Code> {
    // SAFETY: guaranteed by the caller.
    mark(unsafe { PendingCommand::new(queue, (count, events, event), COMMAND_MARKER)? }, false)
}

/// # Safety
///
/// Lists have their stated lengths; `event` is null or writable.
pub(crate) unsafe fn enqueue_barrier_with_wait_list(
    queue: cl_command_queue,
    count: u32,
    events: *const cl_event,
    event: *mut cl_event,
) -> Result<(), Code> {
    // SAFETY: guaranteed by the caller.
    mark(unsafe { PendingCommand::new(queue, (count, events, event), COMMAND_BARRIER)? }, true)
}

/// # Safety
///
/// `event` is null or writable.
pub(crate) unsafe fn enqueue_marker(queue: cl_command_queue, event: *mut cl_event) -> Result<(), Code> {
    if event.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: guaranteed by the caller.
    mark(unsafe { PendingCommand::new(queue, (0, std::ptr::null(), event), COMMAND_MARKER)? }, false)
}

pub(crate) fn enqueue_barrier(queue: cl_command_queue) -> Result<(), Code> {
    // SAFETY: no list and no event pointer is given.
    mark(unsafe { PendingCommand::new(queue, (0, std::ptr::null(), std::ptr::null_mut()), COMMAND_BARRIER)? }, true)
}

/// Enqueues a barrier in its old form, which waits for events.
///
/// # Safety
///
/// There are `count` events.
pub(crate) unsafe fn enqueue_wait_for_events(
    queue: cl_command_queue,
    count: u32,
    events: *const cl_event,
) -> Result<(), Code> {
    if count == 0 || events.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: guaranteed by the caller.
    mark(unsafe { PendingCommand::new(queue, (count, events, std::ptr::null_mut()), COMMAND_BARRIER)? }, true)
}

//! Maps of images that lie in memory shared with the worker ([`crate::host::arena`]). The driver uses them in place, so a map
//! only takes its place in the order of commands. After a change of worker, only a call tells whether that still holds.
#![expect(unsafe_code, reason = "reads through the pointers of C callers")]

use std::ptr;

use katydid_opencl_sys::constant::{COMMAND_MAP_IMAGE, MAP_WRITE, MAP_WRITE_INVALIDATE_REGION};
use katydid_opencl_sys::{Code, cl_mem};
use katydid_wire::codec::Field as _;
use katydid_wire::opencl::message::{kdclMap, kdclUnmap};

use crate::commands::transfer::image_box;
use crate::host::pending_reads;
use crate::objects::maps::{Map, UnmapAction};
use crate::objects::memory::Memory;
use crate::objects::pending_command::PendingCommand;
use crate::process::session;
use crate::transfers::images_in_place::{have_ended_before, packed};
use crate::transfers::in_place;
use crate::transfers::transfer::Transfer;

/// Encodes the message's arguments for a region: events, extent, pitches.
fn arguments(command: &PendingCommand, transfer: &Transfer) -> Vec<u8> {
    let mut waits = transfer.arguments(command);
    in_place::pitches(transfer).into_iter().for_each(|pitch| (pitch as u64).put(&mut waits));
    waits
}

/// Maps the region that the program gives by `origin` and `region`, and returns its address.
///
/// # Safety
///
/// Origin and region hold three numbers.
pub(crate) unsafe fn map(
    command: PendingCommand,
    (image, memory): (cl_mem, &Memory),
    blocking: bool,
    flags: u64,
    (origin, region): (*const usize, *const usize),
) -> Result<usize, Code> {
    let shape = memory.image.ok_or(Code::INVALID_MEM_OBJECT)?;
    let (row, slice) = packed(&shape);
    // SAFETY: guaranteed by the caller.
    let mut transfer =
        unsafe { image_box(image, origin, region, (row, slice), ptr::without_provenance(memory.shared))? };
    let [x, y, z] = transfer.extent.origin.map(|number| number as usize);
    let address = memory.shared + z * slice + y * row + x * shape.element;
    transfer.rows.start = address;
    let (region, writes) = (transfer.rows, flags & (MAP_WRITE | MAP_WRITE_INVALIDATE_REGION) != 0);
    let back = UnmapAction::InPlace(transfer.extent, writes);
    let is_plain = command.event() == 0 && !command.has_waits();
    if memory.is_in_place(command.worker) && is_plain && (!blocking || have_ended_before(&command)?) {
        if blocking { command.ended() } else { command.skipped() }
    } else {
        by_worker(command, &transfer, blocking, flags)?;
    }
    memory.maps().add(Map { back, region, read_number: 0, pages: None, shows: None });
    Ok(address)
}

/// Asks the worker to map a region: it copies one that does not lie in shared memory.
fn by_worker(command: PendingCommand, transfer: &Transfer, blocking: bool, flags: u64) -> Result<(), Code> {
    let command = if blocking { command.with_event(COMMAND_MAP_IMAGE)? } else { command };
    let (queue, event, memory) = (command.queue(), command.event(), transfer.memory.base.id);
    let (address, waits) = (transfer.rows.start as u64, arguments(&command, transfer));
    let outcome = session::call(&kdclMap { queue, event, memory, flags, address, waits: &waits })?;
    if outcome.in_place != 0 {
        transfer.memory.learn_in_place(command.worker);
    }
    command.sent(blocking)
}

/// Unmaps such a region. Returns the command if all that is left is to take its place in the order.
pub(crate) fn unmap(
    command: PendingCommand,
    transfer: &Transfer,
    writes: bool,
) -> Result<Option<PendingCommand>, Code> {
    if writes {
        pending_reads::wait_for_overlapping(&transfer.rows)?;
    }
    if !writes || transfer.memory.is_in_place(command.worker) {
        return Ok(Some(command));
    }
    let (queue, event, memory) = (command.queue(), command.event(), transfer.memory.base.id);
    let (address, waits) = (transfer.rows.start as u64, arguments(&command, transfer));
    session::call(&kdclUnmap { queue, event, memory, address, writes: 1, waits: &waits })?;
    command.publish();
    Ok(None)
}

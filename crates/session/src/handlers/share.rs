//! Memory and events that programs of one server share.

#![expect(unsafe_code, reason = "calls the driver")]

use std::sync::Arc;

use katydid_cuda_sys::{CUevent, CUipcEventHandle, CUmemAllocationProp, CUresult, Pod, location_type};
use katydid_driver::Driver;
use katydid_transport::share::Lent;
use katydid_wire::frame::FrameHead;
use katydid_wire::message::{
    kdEventOpen, kdEventOpenReply, kdEventShare, kdEventShareReply, kdForeignMap, kdForeignMapReply, kdForeignUnmap,
    kdForeignUnmapReply, kdMemoryBorrow, kdMemoryBorrowReply, kdMemoryLend, kdMemoryLendReply,
};

use super::{Called, Detached, done};
use crate::ask::ask;
use crate::fault::Fault;
use crate::session::Session;
use crate::shares::{block_of, descriptor, key_of_block};

/// Lends a block of the program's, or the pieces of an arena that hold a range.
pub(crate) fn kdMemoryLend(
    session: &mut Session,
    _head: &FrameHead,
    message: kdMemoryLend,
) -> Called<kdMemoryLendReply> {
    let kdMemoryLend { memory, address, length, .. } = message;
    let driver = Arc::clone(&session.shared.driver);
    let (pieces, key, offset) = if memory == 0 {
        let ranges = session.device.pieces(address, length)?;
        let first = ranges.first().map_or(address, |(start, _)| *start);
        let pieces = ranges.iter().map(|(start, size)| lent(&driver, *start, *size)).collect::<Result<Vec<_>, _>>()?;
        (pieces, first, address - first)
    } else {
        let (block, size) = session.virtual_memory.block_and_size(memory)?;
        (vec![(descriptor(&driver, block)?, size)], key_of_block(memory), 0)
    };
    let size = pieces.iter().map(|(_, size)| size).sum();
    let name = session.shares.lend(pieces, key)?.to_vec();
    done(kdMemoryLendReply { offset, size, name })
}

/// A descriptor of the piece that is mapped at an address.
fn lent(driver: &Driver, address: u64, size: u64) -> Result<Lent, CUresult> {
    let place = std::ptr::with_exposed_provenance_mut(address as usize);
    // SAFETY: the output is a local; the driver looks the address up.
    let block = ask(|out| unsafe { driver.cuMemRetainAllocationHandle(out, place) })?;
    let made = descriptor(driver, block);
    // SAFETY: gives back what was retained just now.
    let _ = unsafe { driver.cuMemRelease(block) };
    Ok((made?, size))
}

/// Takes a block of another program.
pub(crate) fn kdMemoryBorrow(
    session: &mut Session,
    _head: &FrameHead,
    message: kdMemoryBorrow<'_>,
) -> Called<kdMemoryBorrowReply> {
    session.virtual_memory.check_new(message.memory)?;
    let borrowed = session.shares.borrow(message.name)?;
    let [(piece, size)] = borrowed.pieces.as_slice() else { return Err(CUresult::ERROR_INVALID_HANDLE.into()) };
    let (driver, size) = (Arc::clone(&session.shared.driver), *size);
    if size > session.device.left() {
        return Err(CUresult::ERROR_OUT_OF_MEMORY.into());
    }
    let block = block_of(&driver, piece)?;
    let mut properties = CUmemAllocationProp::default();
    // SAFETY: the output is a local.
    let told = unsafe { driver.cuMemGetAllocationPropertiesFromHandle(&raw mut properties, block) };
    let device = if properties.location.type_ == location_type::DEVICE { properties.location.id } else { 0 };
    told.ok().inspect_err(|_| {
        // SAFETY: taken just now, and nobody knows it.
        let _ = unsafe { driver.cuMemRelease(block) };
    })?;
    session.virtual_memory.add(message.memory, block, size);
    session.device.charge(size);
    session.shares.keep_block(message.memory, borrowed.lease);
    session.shared.usage.set_device_memory(session.device.held());
    done(kdMemoryBorrowReply { size, device })
}

/// Maps all that a name stands for into a reservation of the program, for the device and those that reach it.
pub(crate) fn kdForeignMap(
    session: &mut Session,
    _head: &FrameHead,
    message: kdForeignMap<'_>,
) -> Called<kdForeignMapReply> {
    let kdForeignMap { address, size, device, .. } = message;
    session.virtual_memory.check_room(address, size)?;
    if session.shares.overlaps(address, size) {
        return Err(CUresult::ERROR_INVALID_VALUE.into());
    }
    let borrowed = session.shares.borrow(message.name)?;
    let whole: u64 = borrowed.pieces.iter().map(|(_, size)| size).sum();
    if whole != size || borrowed.pieces.is_empty() {
        return Err(CUresult::ERROR_INVALID_VALUE.into());
    }
    let driver = Arc::clone(&session.shared.driver);
    let grants = session.device.grants(device)?;
    let mut at = address;
    let mapped = borrowed.pieces.iter().try_for_each(|piece| {
        map_piece(&driver, at, piece)?;
        at += piece.1;
        Ok(())
    });
    let granted = mapped.and_then(|()| {
        // SAFETY: mapped above; the array has as many entries as said and outlives the call.
        let all = unsafe { driver.cuMemSetAccess(address, size as usize, grants.as_ptr(), grants.len()) };
        // SAFETY: as above, with the device alone.
        all.ok().or_else(|_| unsafe { driver.cuMemSetAccess(address, size as usize, grants.as_ptr(), 1) }.ok())
    });
    if let Err(code) = granted {
        if at > address {
            // SAFETY: mapped above, and used by nobody.
            let _ = unsafe { driver.cuMemUnmap(address, (at - address) as usize) };
        }
        return Err(code.into());
    }
    session.shares.map(address, size, borrowed.lease);
    done(kdForeignMapReply {})
}

fn map_piece(driver: &Driver, address: u64, (piece, size): &Lent) -> Result<(), CUresult> {
    let block = block_of(driver, piece)?;
    // SAFETY: a part of a reservation in which, by the books, nothing is mapped.
    let mapped = unsafe { driver.cuMemMap(address, *size as usize, 0, block, 0) };
    // SAFETY: ours; the mapping keeps the memory.
    let _ = unsafe { driver.cuMemRelease(block) };
    mapped.ok()
}

/// Unmaps what was borrowed as a whole, when the GPU is done with it.
pub(crate) fn kdForeignUnmap(
    session: &mut Session,
    _head: &FrameHead,
    message: kdForeignUnmap,
) -> Detached<kdForeignUnmapReply> {
    let kdForeignUnmap { address, size } = message;
    if !session.shares.unmap(address, size) {
        return Err(Fault::from(CUresult::ERROR_INVALID_VALUE));
    }
    Ok(Box::new(move |driver| {
        // SAFETY: takes nothing. A context in error has nothing running.
        let _ = unsafe { driver.cuCtxSynchronize() };
        // SAFETY: mapped for the program, and out of the books.
        let status = unsafe { driver.cuMemUnmap(address, size as usize) };
        (status, kdForeignUnmapReply {})
    }))
}

/// A handle of an event for other programs.
pub(crate) fn kdEventShare(
    session: &mut Session,
    head: &FrameHead,
    message: kdEventShare,
) -> Called<kdEventShareReply> {
    let event: CUevent = session.handle(head, message.event)?;
    let driver = session.driver();
    // SAFETY: the output is a local, the event is the driver's own.
    let handle: CUipcEventHandle = ask(|out| unsafe { driver.cuIpcGetEventHandle(out, event) })?;
    done(kdEventShareReply { handle: handle.to_bytes() })
}

/// An event of another program.
pub(crate) fn kdEventOpen(
    session: &mut Session,
    _head: &FrameHead,
    message: kdEventOpen<'_>,
) -> Called<kdEventOpenReply> {
    session.tables.events.check_new(message.event)?;
    let handle = CUipcEventHandle::from_bytes(message.handle).ok_or(CUresult::ERROR_INVALID_VALUE)?;
    let driver = session.driver();
    // SAFETY: the output is a local; a handle is bytes, of which the driver believes none.
    let event = ask(|out| unsafe { driver.cuIpcOpenEventHandle(out, handle) })?;
    session.bind(message.event, event)?;
    done(kdEventOpenReply {})
}

//! The virtual memory API.

#![expect(unsafe_code, reason = "calls the driver")]

use std::sync::Arc;

use katydid_arena::RESERVATION_UNIT;
use katydid_cuda_sys::{
    CUmemAccessDesc, CUmemAllocationProp, CUmemLocation, CUresult, access_flags, allocation_type, location_type,
};
use katydid_driver::Driver;
use katydid_wire::frame::FrameHead;
use katydid_wire::message::{
    kdAddressFree, kdAddressFreeReply, kdAddressReserve, kdAddressReserveReply, kdMemoryAccess, kdMemoryAccessReply,
    kdMemoryCreate, kdMemoryCreateReply, kdMemoryGranularity, kdMemoryGranularityReply, kdMemoryMap, kdMemoryMapReply,
    kdMemoryRelease, kdMemorySetAccess, kdMemorySetAccessReply, kdMemoryUnmap, kdMemoryUnmapReply,
};

use crate::calls::fault::{Fault, SessionError};
use crate::device::ask::ask;
use crate::handlers::{CallResult, EnqueueResult, ExecutorResult, success};
use crate::memory::shares::{POSIX_FD_HANDLE_TYPE, SharedObject};
use crate::memory::stand_in::{block_for, map_over};
use crate::memory::virtual_memory::Memory;
use crate::state::Session;

/// `CU_MEM_CREATE_USAGE_TILE_POOL`: memory that backs sparse arrays.
const TILE_POOL: u16 = 1;

/// Most pieces that a driver may have in stock: at 32 MiB each, a gibibyte, which is more than was seen.
const MAX_MISPLACED_PIECES: usize = 32;

/// Returns the bytes to ask the driver for, so that `size` bytes lie at the program's address.
fn driver_size(size: u64) -> Result<usize, CUresult> {
    size.checked_next_multiple_of(RESERVATION_UNIT).map(|size| size as usize).ok_or(CUresult::ERROR_OUT_OF_MEMORY)
}

/// Reserves exactly the addresses that the program reserved on its side; `ALREADY_MAPPED` if they are not available.
pub(crate) fn kdAddressReserve(
    session: &mut Session,
    _head: &FrameHead,
    message: kdAddressReserve,
) -> CallResult<kdAddressReserveReply> {
    let (requested_address, size) = (message.address, driver_size(message.size)?);
    let driver = Arc::clone(&session.shared.driver);
    reserve_at(&driver, requested_address, size)?;
    if session.virtual_memory.reserve(requested_address, message.size) {
        session.address_check.add_reservation(requested_address, message.size);
        return success(kdAddressReserveReply {});
    }
    give_back(&driver, requested_address, size);
    Err(CUresult::ERROR_ALREADY_MAPPED.into())
}

/// Reserves at exactly `requested_address`. NVIDIA's driver ignores the requested address as long as a piece in its stock
/// has room (seen in programs of PyTorch). So reservations elsewhere are kept until the stock is used up.
fn reserve_at(driver: &Driver, requested_address: u64, size: usize) -> Result<(), CUresult> {
    let mut elsewhere = Vec::new();
    let reserved = loop {
        // SAFETY: asks for addresses only; the output is a local.
        match ask(|out| unsafe { driver.cuMemAddressReserve(out, size, 0, requested_address, 0) }) {
            Ok(got) if got == requested_address => break Ok(()),
            Ok(other) => elsewhere.push(other),
            Err(code) => break Err(code),
        }
        if elsewhere.len() > MAX_MISPLACED_PIECES {
            break Err(CUresult::ERROR_ALREADY_MAPPED);
        }
    };
    elsewhere.into_iter().for_each(|address| give_back(driver, address, size));
    reserved
}

/// Frees a reservation that was just made.
fn give_back(driver: &Driver, address: u64, size: usize) {
    // SAFETY: reserved by the caller; nothing was mapped there.
    let _ = unsafe { driver.cuMemAddressFree(address, size) };
}

/// Frees a reservation without mappings.
pub(crate) fn kdAddressFree(
    session: &mut Session,
    _head: &FrameHead,
    message: kdAddressFree,
) -> CallResult<kdAddressFreeReply> {
    session.virtual_memory.unreserve(message.address, message.size)?;
    session.address_check.remove_reservation(message.address);
    // SAFETY: reserved for the program, and nothing is mapped there by the session's tables.
    unsafe { session.driver().cuMemAddressFree(message.address, driver_size(message.size)?) }.ok()?;
    success(kdAddressFreeReply {})
}

/// Makes a block; out-of-memory is that of the device or of the limit. `ERROR_NOT_READY` as in `kdDeviceGrow`.
pub(crate) fn kdMemoryCreate(
    session: &mut Session,
    _head: &FrameHead,
    message: kdMemoryCreate<'_>,
) -> CallResult<kdMemoryCreateReply> {
    session.virtual_memory.check_new(message.memory)?;
    let requested = properties(session, message.properties, "kdMemoryCreate")?;
    let is_rehearsal = session.device.is_rehearsal();
    let size = if is_rehearsal { block_for(message.size) } else { message.size } as usize;
    let (driver, memory) = (Arc::clone(&session.shared.driver), memory_of(&requested));
    if memory != Memory::Host && message.size > session.device.bytes_left() {
        return Err(CUresult::ERROR_OUT_OF_MEMORY.into());
    }
    // SAFETY: `requested` and the output outlive the call.
    let make = || ask(|out| unsafe { driver.cuMemCreate(out, size, &raw const requested, 0) });
    let handle = match make() {
        // A snapshot held memory, and has released it now.
        Err(CUresult::ERROR_OUT_OF_MEMORY) if session.make_way()? => make(),
        result => result,
    }?;
    session.virtual_memory.add(message.memory, handle, message.size, memory);
    if memory != Memory::Host {
        session.device.charge(message.size);
        session.shared.usage.set_memory(session.device.backed_bytes());
    }
    success(kdMemoryCreateReply {})
}

/// Returns the kind of memory of a block with these properties: the driver does not tell a block's use later.
fn memory_of(requested: &CUmemAllocationProp) -> Memory {
    if is_host(requested.location) {
        Memory::Host
    } else if requested.usage & TILE_POOL != 0 {
        Memory::Tiles
    } else {
        Memory::Device
    }
}

/// Releases a handle; the memory goes with the last mapping.
pub(crate) fn kdMemoryRelease(session: &mut Session, _head: &FrameHead, message: kdMemoryRelease) -> EnqueueResult {
    let handle = session.virtual_memory.block(message.memory)?;
    let free = session.virtual_memory.release(message.memory);
    refund(session, free);
    session.shares.end(SharedObject::Block(message.memory));
    // SAFETY: the program's own handle, which leaves the tables here.
    Ok(unsafe { session.driver().cuMemRelease(handle) })
}

/// Maps a part of a block, without access until that is granted.
pub(crate) fn kdMemoryMap(
    session: &mut Session,
    _head: &FrameHead,
    message: kdMemoryMap,
) -> CallResult<kdMemoryMapReply> {
    let kdMemoryMap { address, size, offset, memory } = message;
    let (handle, whole) = session.virtual_memory.block_and_size(memory)?;
    session.virtual_memory.check_room(address, size)?;
    if session.device.is_rehearsal() {
        map_over(session.driver(), (handle, block_for(whole)), address, size)?;
        session.virtual_memory.map(address, size, memory);
        return success(kdMemoryMapReply {});
    }
    // SAFETY: inside a reservation of the program in which, by the session's tables, nothing is mapped.
    unsafe { session.driver().cuMemMap(address, size as usize, offset as usize, handle, 0) }.ok()?;
    session.virtual_memory.map(address, size, memory);
    success(kdMemoryMapReply {})
}

/// Unmaps whole mappings; the driver may wait for the GPU.
pub(crate) fn kdMemoryUnmap(
    session: &mut Session,
    _head: &FrameHead,
    message: kdMemoryUnmap,
) -> ExecutorResult<kdMemoryUnmapReply> {
    open(session, message.address, message.size, false);
    let free = session.virtual_memory.unmap(message.address, message.size)?;
    refund(session, free);
    Ok(Box::new(move |driver| {
        // SAFETY: mapped for the program, and has left the tables.
        let status = unsafe { driver.cuMemUnmap(message.address, message.size as usize) };
        (status, kdMemoryUnmapReply {})
    }))
}

/// Grants or revokes access to whole mappings.
pub(crate) fn kdMemorySetAccess(
    session: &mut Session,
    _head: &FrameHead,
    message: kdMemorySetAccess<'_>,
) -> CallResult<kdMemorySetAccessReply> {
    if !session.virtual_memory.is_mapped(message.address, message.size) {
        return Err(CUresult::ERROR_INVALID_VALUE.into());
    }
    let grants = grants(session, message.grants)?;
    let size = message.size as usize;
    // SAFETY: the range is mapped for the program; the array has as many entries as said and outlives the call.
    unsafe { session.driver().cuMemSetAccess(message.address, size, grants.as_ptr(), grants.len()) }.ok()?;
    for grant in grants.iter().filter(|grant| is_host(grant.location)) {
        open(session, message.address, message.size, grant.flags == access_flags::READ_WRITE);
    }
    success(kdMemorySetAccessReply {})
}

/// Opens whole mappings of host blocks to the program, or closes them.
fn open(session: &Session, address: u64, size: u64, is_open: bool) {
    for (start, length) in session.virtual_memory.on_host(address, size) {
        session.shared.blocks.open(start, length, is_open);
    }
}

/// Returns the access of a device to an address.
pub(crate) fn kdMemoryAccess(
    session: &mut Session,
    _head: &FrameHead,
    message: kdMemoryAccess,
) -> CallResult<kdMemoryAccessReply> {
    let location = CUmemLocation { type_: location_type::DEVICE, id: message.device };
    let driver = session.driver();
    // SAFETY: both pointers are locals' for the call.
    let flags = ask(|out| unsafe { driver.cuMemGetAccess(out, &raw const location, message.address) })?;
    success(kdMemoryAccessReply { flags })
}

/// Returns the granularity of sizes and addresses.
pub(crate) fn kdMemoryGranularity(
    session: &mut Session,
    _head: &FrameHead,
    message: kdMemoryGranularity<'_>,
) -> CallResult<kdMemoryGranularityReply> {
    let requested = properties(session, message.properties, "kdMemoryGranularity")?;
    let (driver, option) = (session.driver(), message.option);
    // SAFETY: both pointers are locals' for the call.
    let granularity =
        ask::<usize>(|out| unsafe { driver.cuMemGetAllocationGranularity(out, &raw const requested, option) })?;
    success(kdMemoryGranularityReply { granularity: granularity as u64 })
}

/// Returns freed bytes to the limit.
fn refund(session: &mut Session, bytes: u64) {
    session.refund(bytes);
    let virtual_memory = &session.virtual_memory;
    session.shares.keep_blocks(|id| virtual_memory.knows(id));
}

/// Returns whether a location is the host, any of its nodes.
fn is_host(location: CUmemLocation) -> bool {
    (location_type::HOST..=location_type::HOST_NUMA_CURRENT).contains(&location.type_)
}

/// Checks the properties of a block: memory of one of the session's devices or of the host, exportable as a file descriptor
/// or not at all.
fn properties(session: &Session, bytes: &[u8], message: &'static str) -> Result<CUmemAllocationProp, Fault> {
    let damaged = || SessionError::DamagedPart { message, part: "properties", reason: "not 32 bytes".to_owned() };
    let bytes: &[u8; size_of::<CUmemAllocationProp>()] = bytes.try_into().map_err(|_| damaged())?;
    // SAFETY: a structure of plain numbers and one pointer, of which every bit pattern is a value; the pointer is
    // replaced below and never followed.
    let answer: CUmemAllocationProp = unsafe { bytes.as_ptr().cast::<CUmemAllocationProp>().read_unaligned() };
    let device = answer.location.type_ == location_type::DEVICE && is_device(session, answer.location.id);
    if answer.type_ != allocation_type::PINNED || !(device || is_host(answer.location)) {
        return Err(CUresult::ERROR_INVALID_VALUE.into());
    }
    let sharing = answer.requestedHandleTypes & POSIX_FD_HANDLE_TYPE;
    Ok(CUmemAllocationProp { requestedHandleTypes: sharing, win32HandleMetaData: std::ptr::null_mut(), ..answer })
}

/// Decodes the grants of a message; each names a device of the session, or the host.
fn grants(session: &Session, bytes: &[u8]) -> Result<Vec<CUmemAccessDesc>, Fault> {
    let (records, rest) = bytes.as_chunks::<{ size_of::<CUmemAccessDesc>() }>();
    if !rest.is_empty() || records.is_empty() {
        let reason = format!("{} bytes are not whole records", bytes.len());
        return Err(SessionError::DamagedPart { message: "kdMemorySetAccess", part: "grants", reason }.into());
    }
    let word = |record: &[u8], at: usize| record.as_chunks().0.get(at).copied().map_or(0, u32::from_le_bytes);
    let read = |record: &[u8; 12]| {
        let location = CUmemLocation { type_: word(record, 0), id: word(record, 1).cast_signed() };
        let device = location.type_ == location_type::DEVICE && is_device(session, location.id);
        (device || is_host(location)).then(|| CUmemAccessDesc { location, flags: word(record, 2) })
    };
    let grants = records.iter().map(read).collect::<Option<Vec<_>>>();
    grants.ok_or_else(|| CUresult::ERROR_INVALID_VALUE.into())
}

fn is_device(session: &Session, ordinal: i32) -> bool {
    usize::try_from(ordinal).is_ok_and(|ordinal| ordinal < session.facts.devices.len())
}

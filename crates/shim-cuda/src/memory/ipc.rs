//! CUDA IPC: memory and events shared by programs of one server.
//!
//! A memory handle names the worker that exports it, and the offset of the memory in the exported block. Opening maps the
//! block into a reservation of this program; the same handle opened again gives the same address. An event handle names the
//! worker too, which gives the importer's worker the driver's handle. That handle changes with a restore; the name does not.
//!
//! A name holds the generation of the exporter's job. If a handle is older than a restore of this program's job, it leads to
//! the members of this restore, not to those of other restores.
#![expect(unsafe_code, reason = "writes pointers of C callers")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use katydid_client::job::generations;
use katydid_client::regions::{Region, RegionKind};
use katydid_cuda_sys::{CUdeviceptr, CUevent, CUipcEventHandle, CUipcMemHandle, CUresult};
use katydid_driver_rules::memory::{check_open, check_open_once};
use katydid_wire::message::{
    kdEventExport, kdEventImport, kdImportedMap, kdImportedUnmap, kdMemoryEndExport, kdMemoryExport,
};

use crate::context::request::call;
use crate::context::{completion, device, stack};
use crate::ffi::arguments::{handle, out};
use crate::ffi::handle::{object, wire};
use crate::memory::device_backing::in_need;
use crate::memory::virtual_memory;
use crate::process::session::shim;
use crate::sync::event::{CompletionRecord, EVENTS, Event};
use crate::sync::stream::UnorderedWork;

/// First bytes of a memory handle.
const MEMORY_HANDLE_MAGIC: [u8; 8] = *b"KATYDIDM";
/// First bytes of an event handle; the name follows.
const EVENT_HANDLE_MAGIC: [u8; 8] = *b"KATYDIDE";
/// Bytes of an exporter's name.
pub(crate) const EXPORTER_NAME_BYTES: usize = 32;

/// The contents of a memory handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct MemoryName {
    name: [u8; EXPORTER_NAME_BYTES],
    /// Bytes of the exported block.
    block_size: u64,
    /// Offset of the memory in it.
    offset: u64,
    /// The worker's ordinal of the device in the upper 16 bits, and the size of the memory below.
    size_and_device: u64,
}

/// Bits of a size, which leave room for the device.
const SIZE_BITS: u32 = 48;

impl MemoryName {
    fn encode(&self) -> CUipcMemHandle {
        let numbers = [self.block_size, self.offset, self.size_and_device].map(u64::to_le_bytes);
        let mut reserved = [0; 64];
        let bytes = MEMORY_HANDLE_MAGIC.into_iter().chain(self.name).chain(numbers.into_iter().flatten());
        reserved.iter_mut().zip(bytes).for_each(|(out, byte)| *out = byte);
        CUipcMemHandle { reserved }
    }

    /// Decodes a handle; none unless a program under Katydid made it.
    fn decode(handle: &CUipcMemHandle) -> Option<Self> {
        let (magic, rest) = handle.reserved.split_first_chunk::<8>()?;
        let (name, rest) = rest.split_first_chunk::<EXPORTER_NAME_BYTES>()?;
        let number = |at: usize| rest.as_chunks().0.get(at).map(|bytes| u64::from_le_bytes(*bytes));
        let it = Self { name: *name, block_size: number(0)?, offset: number(1)?, size_and_device: number(2)? };
        let inside = it.offset.checked_add(it.size()).is_some_and(|end| end <= it.block_size);
        (*magic == MEMORY_HANDLE_MAGIC && inside && it.size() > 0).then_some(it)
    }

    fn size(&self) -> u64 {
        self.size_and_device & ((1 << SIZE_BITS) - 1)
    }

    fn position(&self) -> usize {
        (self.size_and_device >> SIZE_BITS) as usize
    }
}

/// Memory of another program that is open here.
#[derive(Debug, Clone, Copy)]
struct OpenMemory {
    exported: MemoryName,
    /// First address of the mapped block, and the bytes reserved for it.
    start: u64,
    /// How often it may still be closed.
    count: u32,
    /// Whether it came from a pool: it is then freed, not closed.
    is_pooled: bool,
}

/// Open memories, by the address that the program knows.
#[derive(Debug)]
struct OpenMemories {
    memories: Mutex<BTreeMap<u64, OpenMemory>>,
}

static OPEN_MEMORIES: OpenMemories = OpenMemories { memories: Mutex::new(BTreeMap::new()) };

impl OpenMemories {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, OpenMemory>> {
        self.memories.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// First addresses of this program's memory with handles.
#[derive(Debug, Default)]
struct ExportedBlocks {
    addresses: Mutex<BTreeSet<u64>>,
    /// Whether there ever was one: most programs export nothing, and free often.
    is_any: AtomicBool,
}

static EXPORTED_BLOCKS: ExportedBlocks =
    ExportedBlocks { addresses: Mutex::new(BTreeSet::new()), is_any: AtomicBool::new(false) };

impl ExportedBlocks {
    fn note(&self, address: u64) {
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner).insert(address);
        self.is_any.store(true, Ordering::Release);
    }

    fn take(&self, address: u64) -> bool {
        self.is_any.load(Ordering::Acquire)
            && self.addresses.lock().unwrap_or_else(PoisonError::into_inner).remove(&address)
    }
}

/// The generation of this program's job; 0 outside of jobs.
pub(crate) fn generation() -> u64 {
    generations().first().copied().unwrap_or(0)
}

/// Makes the name that workers import by: the exporter's name and the generations of this program's job.
pub(crate) fn import_name(name: [u8; EXPORTER_NAME_BYTES]) -> Vec<u8> {
    name.into_iter().chain(generations().into_iter().flat_map(u64::to_le_bytes)).collect()
}

/// Invalidates the handles of memory that is about to be freed, before any other program can learn of the free.
pub(crate) fn freed(address: CUdeviceptr) -> Result<(), CUresult> {
    if !EXPORTED_BLOCKS.take(address) {
        return Ok(());
    }
    shim()?.session.call(0, &kdMemoryEndExport { address }).map(drop)
}

/// Returns the handle of memory from `cuMemAlloc` and the other functions that allocate.
///
/// # Safety
///
/// `target` is null or writable; this holds for every function below.
pub(crate) unsafe fn memory_handle(target: *mut CUipcMemHandle, address: CUdeviceptr) -> Result<(), CUresult> {
    // SAFETY: by the contract.
    let target = unsafe { out(target) }?;
    let region = shim()?.regions.find(address).filter(|region| region.kind == RegionKind::Device);
    target.write(export(&region.ok_or(CUresult::ERROR_INVALID_VALUE)?)?);
    Ok(())
}

/// Returns the handle of memory in a device's arena.
pub(crate) fn export(region: &Region) -> Result<CUipcMemHandle, CUresult> {
    let (shim, wrong) = (shim()?, CUresult::ERROR_INVALID_VALUE);
    let device = device::all()?.get(region.device as usize).ok_or(CUresult::ERROR_INVALID_DEVICE)?;
    let reply =
        call(&kdMemoryExport { generation: generation(), memory: 0, address: region.start, length: region.size })?;
    EXPORTED_BLOCKS.note(region.start);
    let name = reply.name.as_slice().try_into().map_err(|_| shim.session.broken("kdMemoryExport"))?;
    if region.size >> SIZE_BITS != 0 {
        return Err(wrong);
    }
    let size_and_device = region.size | (device.position as u64) << SIZE_BITS;
    UnorderedWork::begin_for_good();
    Ok(MemoryName { name, block_size: reply.size, offset: reply.offset, size_and_device }.encode())
}

/// Opens a handle; one that is open already gives the same address.
///
/// # Safety
///
/// As [`memory_handle`].
pub(crate) unsafe fn open_memory(target: *mut CUdeviceptr, handle: CUipcMemHandle, flags: u32) -> Result<(), CUresult> {
    // SAFETY: by the contract.
    let target = unsafe { out(target) }?;
    stack::active()?;
    check_open(flags)?;
    target.write(open(&handle, false)?);
    Ok(())
}

/// The form of CUDA 4.1, which refuses a handle that is open already.
///
/// # Safety
///
/// As [`memory_handle`].
pub(crate) unsafe fn open_memory_once(
    target: *mut CUdeviceptr,
    handle: CUipcMemHandle,
    flags: u32,
) -> Result<(), CUresult> {
    stack::active()?;
    check_open_once(flags, || is_open(&handle))?;
    // SAFETY: by the contract.
    unsafe { open_memory(target, handle, flags) }
}

fn is_open(handle: &CUipcMemHandle) -> Result<bool, CUresult> {
    let exported = MemoryName::decode(handle).ok_or(CUresult::ERROR_INVALID_HANDLE)?;
    Ok(OPEN_MEMORIES.lock().values().any(|open| open.exported == exported && !open.is_pooled))
}

/// Returns the address of a handle's memory; the same one for a handle that is open already.
pub(crate) fn open(handle: &CUipcMemHandle, is_pooled: bool) -> Result<u64, CUresult> {
    let exported = MemoryName::decode(handle).ok_or(CUresult::ERROR_INVALID_HANDLE)?;
    let mut memories = OPEN_MEMORIES.lock();
    let alike = |open: &OpenMemory| open.exported == exported && open.is_pooled == is_pooled;
    if let Some((address, open)) = memories.iter_mut().find(|(_, open)| alike(open)) {
        open.count += 1;
        return Ok(*address);
    }
    let start = map(&exported)?;
    UnorderedWork::begin_for_good();
    let address = start + exported.offset;
    memories.insert(address, OpenMemory { exported, start, count: 1, is_pooled });
    Ok(address)
}

/// Returns whether memory of another program's pool begins here.
pub(crate) fn is_pooled(address: CUdeviceptr) -> bool {
    OPEN_MEMORIES.lock().get(&address).is_some_and(|open| open.is_pooled)
}

/// Maps an exported block at an address of this program.
fn map(exported: &MemoryName) -> Result<u64, CUresult> {
    let shim = shim()?;
    let ordinal = device::all()?.iter().position(|device| device.position == exported.position());
    let ordinal = ordinal.ok_or(CUresult::ERROR_INVALID_DEVICE)? as u32;
    let start = virtual_memory::reserve_for(exported.block_size)?;
    let name = import_name(exported.name);
    let message =
        kdImportedMap { address: start, size: exported.block_size, device: exported.position() as i32, name: &name };
    let mapped = in_need(ordinal, exported.block_size, || call(&message));
    if let Err(code) = mapped {
        virtual_memory::unreserve(start, exported.block_size as usize)?;
        return Err(code);
    }
    shim.regions.insert(start + exported.offset, exported.size(), RegionKind::Mapped, ordinal, 0);
    Ok(start)
}

/// Closes memory, which is unmapped with the last close. The exporter's stays.
pub(crate) fn close_memory(address: CUdeviceptr) -> Result<(), CUresult> {
    if is_pooled(address) { Err(CUresult::ERROR_INVALID_VALUE) } else { close(address) }
}

/// As [`close_memory`], for both kinds.
pub(crate) fn close(address: CUdeviceptr) -> Result<(), CUresult> {
    stack::active()?;
    let shim = shim()?;
    let mut memories = OPEN_MEMORIES.lock();
    let open = memories.get_mut(&address).ok_or(CUresult::ERROR_INVALID_VALUE)?;
    open.count -= 1;
    if open.count > 0 {
        return Ok(());
    }
    let OpenMemory { exported, start, .. } = *open;
    memories.remove(&address);
    completion::synchronize_all()?;
    shim.regions.remove(address, |region| region.kind == RegionKind::Mapped);
    call(&kdImportedUnmap { address: start, size: exported.block_size })?;
    virtual_memory::unreserve(start, exported.block_size as usize)
}

/// Returns the handle of an event that was made for IPC (`CU_EVENT_INTERPROCESS`).
///
/// # Safety
///
/// As [`memory_handle`].
pub(crate) unsafe fn event_handle(target: *mut CUipcEventHandle, event: CUevent) -> Result<(), CUresult> {
    // SAFETY: by the contract.
    let target = unsafe { out(target) }?;
    let reply = call(&kdEventExport { generation: generation(), event: wire(event)? })?;
    object(event)?.is_shared.store(true, Ordering::Relaxed);
    let mut reserved = [0; 64];
    let bytes = EVENT_HANDLE_MAGIC.iter().chain(&reply.name).copied();
    reserved.iter_mut().zip(bytes).for_each(|(out, byte)| *out = byte);
    target.write(CUipcEventHandle { reserved });
    Ok(())
}

/// Returns the name in an event handle; none unless a program under Katydid made it.
fn event_name(handle: &CUipcEventHandle) -> Option<[u8; EXPORTER_NAME_BYTES]> {
    let (magic, rest) = handle.reserved.split_first_chunk()?;
    rest.first_chunk().copied().filter(|_| *magic == EVENT_HANDLE_MAGIC)
}

/// Opens an event of another program as one of this program.
///
/// # Safety
///
/// As [`memory_handle`].
pub(crate) unsafe fn open_event(target: *mut CUevent, shared: CUipcEventHandle) -> Result<(), CUresult> {
    // SAFETY: by the contract.
    let target = unsafe { out(target) }?;
    let context = stack::active()?.owner();
    let name = import_name(event_name(&shared).ok_or(CUresult::ERROR_INVALID_HANDLE)?);
    let event = EVENTS.get()?.try_insert(CUresult::ERROR_OUT_OF_MEMORY, |slot| {
        call(&kdEventImport { event: slot.index + 1, name: &name })?;
        let (was_recorded, is_shared) = (AtomicBool::new(true), AtomicBool::new(true));
        Ok(Event { slot, context, was_recorded, is_shared, is_private: false, done: CompletionRecord::default() })
    })?;
    target.write(CUevent(handle(event.slot.handle)));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_has_handles_until_it_is_freed() {
        let blocks = ExportedBlocks::default();
        assert!(!blocks.take(16));
        blocks.note(16);
        assert!(!blocks.take(32) && blocks.take(16) && !blocks.take(16));
    }

    #[test]
    fn handles_say_what_they_were_made_from_and_no_other_bytes_are_handles() {
        let exported = MemoryName {
            name: [7; EXPORTER_NAME_BYTES],
            block_size: 4 << 20,
            offset: 4096,
            size_and_device: 3 << SIZE_BITS | 100,
        };
        let handle = exported.encode();
        assert_eq!(MemoryName::decode(&handle), Some(exported));
        assert_eq!((exported.size(), exported.position()), (100, 3));
        let mut damaged = handle;
        damaged.reserved[0] = 0;
        assert_eq!(MemoryName::decode(&damaged), None);
        let beyond = MemoryName { offset: (4 << 20) - 99, ..exported };
        assert_eq!(MemoryName::decode(&beyond.encode()), None);
        assert_eq!(MemoryName::decode(&CUipcMemHandle { reserved: [0; 64] }), None);
    }
}

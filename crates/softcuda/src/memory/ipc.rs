//! Memory that other processes open by handles of 64 bytes (`cuIpcGetMemHandle` and what belongs to it).
//!
//! Pages of a device's arena become pages of a memory file when memory in them is first given away (`device_memory.rs`). A handle
//! names the process and its descriptor of that file, as handles of events do (`ipc_event_counters.rs`), and one of a file that is
//! open until the memory is freed. It leads nowhere once the process has ended or the memory is freed, but a process that
//! opened it keeps the pages.
//!
//! | bytes | what                                                        |
//! |------:|-------------------------------------------------------------|
//! |     8 | [`MEMORY_HANDLE_MAGIC`]                                                    |
//! |     4 | the process                                                  |
//! |     4 | its descriptor of the file                                   |
//! |     8 | what tells the file from another one (its inode)             |
//! |     8 | where the memory begins in the file                          |
//! |     8 | its size                                                     |
//! |    16 | UUID of the device                                           |
//! |     4 | its descriptor of the file that is open until the memory is freed |
//! |     4 | what tells that file from another one (the low half of its inode) |

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use katydid_cuda_sys::{CUipcMemHandle, CUresult};
use katydid_driver_rules::memory::{check_open, check_open_once};

use crate::context::contexts;
use crate::context::state::Context;
use crate::ffi::Outcome;
use crate::memory::device_memory::SharedExtent;
use crate::memory::ipc_event_counters::{self, identity};
use crate::memory::pages::{PAGE_BYTES, Protection, Range};
use crate::memory::space::{self, RangeKind, Region};
use crate::process::device;

/// First bytes of a handle.
const MEMORY_HANDLE_MAGIC: u64 = u64::from_le_bytes(*b"katydmem");
/// Addresses of opened memory are multiples of this, like those of large allocations.
const IMPORT_ALIGN_BYTES: u64 = 2 << 20;

const INVALID_HANDLE: CUresult = CUresult::ERROR_INVALID_VALUE;

/// Memory of another process that is open here.
struct OpenedMemory {
    handle: CUipcMemHandle,
    /// Handle of the context that opened it.
    context: usize,
    /// How often it may still be closed.
    count: u32,
    /// The addresses of its pages, released with it.
    _range: Range,
}

/// Opened memory by the address that the program has.
static OPENED_MEMORY: Mutex<BTreeMap<u64, OpenedMemory>> = Mutex::new(BTreeMap::new());

fn opened() -> MutexGuard<'static, BTreeMap<u64, OpenedMemory>> {
    OPENED_MEMORY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The decoded fields of a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NamedMemory {
    process: u32,
    descriptor: u32,
    identity: u64,
    offset: u64,
    size: u64,
    device: [u8; 16],
    lifetime_file: (u32, u32),
}

impl NamedMemory {
    fn encode(&self) -> CUipcMemHandle {
        let pair = u64::from(self.process) | u64::from(self.descriptor) << 32;
        let fields = [MEMORY_HANDLE_MAGIC, pair, self.identity, self.offset, self.size];
        let lifetime_file = [self.lifetime_file.0, self.lifetime_file.1].into_iter().flat_map(u32::to_le_bytes);
        let bytes = fields.into_iter().flat_map(u64::to_le_bytes).chain(self.device).chain(lifetime_file);
        let mut reserved = [0; 64];
        reserved.iter_mut().zip(bytes).for_each(|(out, byte)| *out = byte);
        CUipcMemHandle { reserved }
    }

    /// Decodes a handle; `None` if this library has not made it.
    fn decode(handle: &CUipcMemHandle) -> Option<Self> {
        let (words, rest) = handle.reserved.split_at(40);
        let [magic, pair, identity, offset, size] = words.as_chunks::<8>().0 else { return None };
        let (device, rest) = rest.split_first_chunk()?;
        let [lifetime_descriptor, lifetime_file] = rest.as_chunks::<4>().0 else { return None };
        let lifetime_file = (u32::from_le_bytes(*lifetime_descriptor), u32::from_le_bytes(*lifetime_file));
        let (pair, number) = (u64::from_le_bytes(*pair), |bytes: &[u8; 8]| u64::from_le_bytes(*bytes));
        let (process, descriptor) = (pair as u32, (pair >> 32) as u32);
        let named = Self {
            process,
            descriptor,
            identity: number(identity),
            offset: number(offset),
            size: number(size),
            device: *device,
            lifetime_file,
        };
        let end = named.offset.checked_add(named.size)?.checked_add(PAGE_BYTES)?;
        (number(magic) == MEMORY_HANDLE_MAGIC && named.size > 0 && i64::try_from(end).is_ok()).then_some(named)
    }

    /// Opens a descriptor of its process.
    fn open(&self, descriptor: u32) -> Outcome<OwnedFd> {
        let path = format!("/proc/{}/fd/{descriptor}", self.process);
        let file = File::options().read(true).write(true).open(path).map(OwnedFd::from);
        file.map_err(|_| CUresult::ERROR_INVALID_HANDLE)
    }

    /// Opens its file, if the process lives and the memory has not been freed.
    fn file(&self) -> Outcome<OwnedFd> {
        let lifetime_file = self.open(self.lifetime_file.0)?;
        if identity(&lifetime_file).ok().map(|inode| inode as u32) != Some(self.lifetime_file.1) {
            return Err(CUresult::ERROR_INVALID_HANDLE);
        }
        let file = self.open(self.descriptor)?;
        let length = File::from(file.try_clone().map_err(|_| CUresult::ERROR_OPERATING_SYSTEM)?).metadata();
        // Pages beyond the end of a file cannot be touched.
        let inside = length.is_ok_and(|it| self.offset + self.size <= it.len());
        if inside && identity(&file).ok() == Some(self.identity) {
            Ok(file)
        } else {
            Err(CUresult::ERROR_INVALID_HANDLE)
        }
    }
}

/// `cuIpcGetMemHandle` of any address in memory of `cuMemAlloc`.
pub(crate) fn handle_of(address: u64) -> Outcome<CUipcMemHandle> {
    let region = space::find(address).filter(|region| region.kind == RangeKind::Device).ok_or(INVALID_HANDLE)?;
    let device = device::get(region.device)?;
    let SharedExtent { descriptor, identity, offset } = device.memory.share(region.start, region.size)?;
    let lifetime_file = {
        let mut space = space::write();
        let file = space.lifetime_file(region.start)?;
        let inode = ipc_event_counters::identity(file).map_err(|_| CUresult::ERROR_OPERATING_SYSTEM)?;
        (file.as_raw_fd().unsigned_abs(), inode as u32)
    };
    let (process, size) = (std::process::id(), region.size);
    Ok(NamedMemory { process, descriptor, identity, offset, size, device: device.uuid(), lifetime_file }.encode())
}

/// `cuIpcOpenMemHandle` as in CUDA 4.1: refuses a handle that is open already.
pub(crate) fn open_once(context: &Context, handle: CUipcMemHandle, flags: u32) -> Outcome<u64> {
    check_open_once(flags, || Ok(opened().values().any(|open| open.handle.reserved == handle.reserved)))?;
    open(context, handle, flags)
}

/// `cuIpcOpenMemHandle_v2`: returns the same address for a handle that is open already. As with a GPU, the process that made a
/// handle cannot open it.
pub(crate) fn open(context: &Context, handle: CUipcMemHandle, flags: u32) -> Outcome<u64> {
    check_open(flags)?;
    let named = NamedMemory::decode(&handle).ok_or(CUresult::ERROR_INVALID_HANDLE)?;
    if named.process == std::process::id() {
        return Err(CUresult::ERROR_INVALID_CONTEXT);
    }
    let mut opened_memory = opened();
    if let Some((address, open)) = opened_memory.iter_mut().find(|(_, open)| open.handle.reserved == handle.reserved) {
        open.count += 1;
        return Ok(*address);
    }
    let device = device::all().iter().find(|device| device.uuid() == named.device);
    let device = device.ok_or(CUresult::ERROR_INVALID_DEVICE)?;
    let file = named.file()?;
    let first = named.offset / PAGE_BYTES * PAGE_BYTES;
    let bytes = (named.offset + named.size).next_multiple_of(PAGE_BYTES) - first;
    let range =
        Range::anywhere(bytes, IMPORT_ALIGN_BYTES, Protection::None).map_err(|_| CUresult::ERROR_OUT_OF_MEMORY)?;
    let mapped = range.attach(range.start(), bytes, &file, first);
    let usable = mapped.and_then(|()| range.protect(range.start(), bytes, Protection::ReadWrite));
    usable.map_err(|_| CUresult::ERROR_OUT_OF_MEMORY)?;
    let address = range.start() + (named.offset - first);
    let kind = RangeKind::Opened(context.device.ordinal);
    let region = Region::new(address, named.size, kind, device.ordinal, context.handle);
    if !space::write().insert(region) {
        return Err(CUresult::ERROR_OUT_OF_MEMORY);
    }
    opened_memory.insert(address, OpenedMemory { handle, context: context.handle, count: 1, _range: range });
    Ok(address)
}

/// `cuIpcCloseMemHandle`, once for each open. The last one waits for the context's work.
pub(crate) fn close(address: u64) -> Outcome {
    let mut opened_memory = opened();
    let open = opened_memory.get_mut(&address).ok_or(INVALID_HANDLE)?;
    open.count -= 1;
    if open.count > 0 {
        return Ok(());
    }
    let gone = opened_memory.remove(&address);
    drop(opened_memory);
    if let Some(context) = gone.as_ref().and_then(|open| contexts::living(open.context)) {
        context.drain();
    }
    space::write().remove(address);
    space::quiet();
    drop(gone);
    Ok(())
}

/// Closes the memory that an ended context has opened. Its ranges have left the space.
pub(crate) fn forget(context: usize) {
    opened().retain(|_, open| open.context != context);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_says_what_it_was_made_of_and_others_are_refused() {
        let named = NamedMemory {
            process: 7,
            descriptor: 8,
            identity: 9,
            offset: 4096,
            size: 3000,
            device: [5; 16],
            lifetime_file: (3, 4),
        };
        let handle = named.encode();
        assert_eq!(NamedMemory::decode(&handle), Some(named));
        let changed = |at: usize, byte: u8| {
            let mut other = handle;
            other.reserved[at] = byte;
            NamedMemory::decode(&other)
        };
        assert_eq!((changed(0, 0), changed(31, 0xff), changed(39, 0xff)), (None, None, None));
        assert_eq!(NamedMemory::decode(&CUipcMemHandle { reserved: [0; 64] }), None);
        assert_eq!(named.file().err(), Some(CUresult::ERROR_INVALID_HANDLE));
    }
}

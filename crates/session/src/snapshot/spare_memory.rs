//! Device memory of the worker itself, for the time of a snapshot.
//!
//! The place of a module's variables depends on earlier allocations of the driver. So nothing here comes from its allocator:
//! addresses are reserved far from those of the program, and backed like the arenas.

#![expect(unsafe_code, reason = "calls the driver")]

use std::fmt;
use std::sync::Arc;

use katydid_cuda_sys::{CUmemGenericAllocationHandle, CUresult};
use katydid_driver::Driver;

use crate::device::ask::ask;
use crate::memory::device_block::{access, create};

/// Where addresses are requested: between the last place of the pinned arena and that of managed memory.
const SPARE_ADDRESS_HINT: u64 = 0x4800_0000_0000;
/// Addresses are reserved in multiples of this, see `handlers/memory/virtual_memory.rs`.
const RESERVE_STEP_BYTES: u64 = 32 << 20;
/// Memory is allocated in multiples of this.
pub(super) const SPARE_GRANULE_BYTES: u64 = 2 << 20;
/// Largest block, in bytes, that is requested at once: a device whose free memory is in pieces has smaller ones.
const MAX_SPARE_BLOCK_BYTES: u64 = 4 << 30;

/// Memory at contiguous addresses, released with the value.
pub(crate) struct SpareMemory {
    driver: Arc<Driver>,
    start: u64,
    /// Length of the reserved address range, in bytes.
    reserved: u64,
    /// Lengths of the mapped blocks, one after the other from the start.
    blocks: Vec<u64>,
}

impl fmt::Debug for SpareMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpareMemory").field("start", &self.start).field("size", &self.size()).finish_non_exhaustive()
    }
}

impl SpareMemory {
    fn reserve(driver: &Arc<Driver>, size: u64) -> Result<Self, CUresult> {
        let reserved = size.checked_next_multiple_of(RESERVE_STEP_BYTES).ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
        // SAFETY: asks for addresses only; the output is a local.
        let start = ask(|out| unsafe { driver.cuMemAddressReserve(out, reserved as usize, 0, SPARE_ADDRESS_HINT, 0) })?;
        Ok(Self { driver: Arc::clone(driver), start, reserved, blocks: Vec::new() })
    }

    /// Allocates as much memory of `device` as there is, `size` bytes at most.
    ///
    /// # Errors
    ///
    /// There is no memory at all.
    pub(super) fn up_to(driver: &Arc<Driver>, device: i32, size: u64) -> Result<Self, CUresult> {
        let mut spare_memory = Self::reserve(driver, size)?;
        let size = size.next_multiple_of(SPARE_GRANULE_BYTES);
        let mut block = MAX_SPARE_BLOCK_BYTES.min(size);
        while spare_memory.size() < size {
            let length = block.min(size - spare_memory.size());
            match create(driver, device, length).and_then(|memory| spare_memory.append(device, memory, length, true)) {
                Ok(()) => {}
                Err(_) if block > SPARE_GRANULE_BYTES => block = (block / 2).next_multiple_of(SPARE_GRANULE_BYTES),
                Err(code) if spare_memory.blocks.is_empty() => return Err(code),
                Err(_) => break,
            }
        }
        Ok(spare_memory)
    }

    /// Maps a block of the program at addresses of the worker, where `device` may read and write it.
    pub(super) fn view(
        driver: &Arc<Driver>,
        device: i32,
        memory: CUmemGenericAllocationHandle,
        size: u64,
    ) -> Result<Self, CUresult> {
        let mut spare_memory = Self::reserve(driver, size)?;
        spare_memory.append(device, memory, size, false)?;
        Ok(spare_memory)
    }

    /// Maps memory after the mapped blocks, and releases its handle if the caller made that.
    fn append(
        &mut self,
        device: i32,
        memory: CUmemGenericAllocationHandle,
        size: u64,
        is_ours: bool,
    ) -> Result<(), CUresult> {
        let (address, length) = (self.start + self.size(), size as usize);
        // SAFETY: inside this reservation, where nothing is mapped yet.
        let mapped = unsafe { self.driver.cuMemMap(address, length, 0, memory, 0) };
        if is_ours {
            // SAFETY: made by the caller; a mapping keeps the memory alive from here on.
            let _ = unsafe { self.driver.cuMemRelease(memory) };
        }
        mapped.ok()?;
        self.blocks.push(size);
        let grant = access(device);
        // SAFETY: mapped above; the grant outlives the call.
        unsafe { self.driver.cuMemSetAccess(address, length, &raw const grant, 1) }.ok()
    }

    /// The first address of the range.
    pub(super) fn start(&self) -> u64 {
        self.start
    }

    /// Bytes that can be used.
    pub(super) fn size(&self) -> u64 {
        self.blocks.iter().sum()
    }
}

impl Drop for SpareMemory {
    fn drop(&mut self) {
        let mut address = self.start;
        for size in &self.blocks {
            // SAFETY: mapped by `append`; the code that used it has waited for the GPU. On failure it ends with the process.
            let _ = unsafe { self.driver.cuMemUnmap(address, *size as usize) };
            address += size;
        }
        // SAFETY: reserved by `reserve`, and nothing is mapped there any more.
        let _ = unsafe { self.driver.cuMemAddressFree(self.start, self.reserved as usize) };
    }
}

//! Physical memory of `cuMemCreate`: blocks without an address, which can be mapped at several places.
//!
//! All blocks of a device lie in one sparse memory file, one after the other; offsets are never reused, and a block
//! that ends gives its pages back by a hole. So the number of blocks is not limited by file descriptors.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use katydid_cuda_sys::{CUmemAllocationProp, CUresult, allocation_type, location_type};

use crate::border::Outcome;
use crate::device::{self, Device};
use crate::handles::{Registry, mint};
use crate::pages;

/// Sizes and addresses of mappings are multiples of this.
pub(crate) const GRANULARITY: u64 = 2 << 20;

/// Offsets that a memory file can have in all.
const FILE: u64 = 1 << 46;

/// The memory file of a device.
pub(crate) struct Physical {
    file: OnceLock<Option<OwnedFd>>,
    next: AtomicU64,
}

impl Physical {
    /// Nothing is made before the first block.
    pub(crate) fn new() -> Self {
        Self { file: OnceLock::new(), next: AtomicU64::new(0) }
    }

    /// Made at first use; without it no block can be had.
    fn file(&self) -> Outcome<&OwnedFd> {
        let file = self.file.get_or_init(|| pages::memory_file(FILE).ok());
        file.as_ref().ok_or(CUresult::ERROR_OPERATING_SYSTEM)
    }
}

/// One block; its memory goes back when the last mapping and the handle are gone.
pub(crate) struct Block {
    /// Its handle.
    pub(crate) handle: usize,
    /// Whose memory it is.
    pub(crate) device: &'static Device,
    /// Bytes.
    pub(crate) size: u64,
    /// Where it lies in the file.
    offset: u64,
    /// How often the handle may still be released: 1, and 1 for each `cuMemRetainAllocationHandle`.
    holds: Mutex<u32>,
}

/// Blocks whose handle is alive.
static BLOCKS: Registry<Block> = Registry::new();

impl Block {
    /// The file with the block's bytes, and their offset.
    pub(crate) fn file(&self) -> Outcome<(&OwnedFd, u64)> {
        Ok((self.device.memory.physical.file()?, self.offset))
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Ok(file) = self.device.memory.physical.file() {
            pages::punch(file, self.offset, self.size);
        }
        self.device.memory.refund(self.size);
    }
}

/// `cuMemCreate`.
pub(crate) fn create(size: u64, properties: &CUmemAllocationProp) -> Outcome<Arc<Block>> {
    if properties.type_ != allocation_type::PINNED || properties.location.type_ != location_type::DEVICE {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    if properties.requestedHandleTypes != 0 {
        return Err(CUresult::ERROR_NOT_SUPPORTED);
    }
    let device = device::get(properties.location.id)?;
    if size == 0 || !size.is_multiple_of(GRANULARITY) {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    device.memory.physical.file()?;
    device.memory.charge(size)?;
    let offset = device.memory.physical.next.fetch_add(size, Ordering::Relaxed);
    let block = Arc::new(Block { handle: mint(), device, size, offset, holds: Mutex::new(1) });
    if offset.checked_add(size).is_none_or(|end| end > FILE) {
        return Err(CUresult::ERROR_OUT_OF_MEMORY);
    }
    BLOCKS.insert(block.handle, Arc::clone(&block));
    Ok(block)
}

/// The block behind a handle.
pub(crate) fn get(handle: u64) -> Outcome<Arc<Block>> {
    BLOCKS.get(handle as usize).ok_or(CUresult::ERROR_INVALID_VALUE)
}

/// `cuMemRelease`: the handle ends with its last hold, the memory with its last mapping.
pub(crate) fn release(handle: u64) -> Outcome {
    let block = get(handle)?;
    let mut holds = block.holds.lock().unwrap_or_else(PoisonError::into_inner);
    *holds -= 1;
    if *holds == 0 {
        BLOCKS.remove(block.handle);
    }
    Ok(())
}

/// `cuMemRetainAllocationHandle`: the handle lives (again) until one more release.
pub(crate) fn retain(block: &Arc<Block>) -> u64 {
    *block.holds.lock().unwrap_or_else(PoisonError::into_inner) += 1;
    BLOCKS.insert(block.handle, Arc::clone(block));
    block.handle as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use katydid_cuda_sys::CUmemLocation;

    fn on_device(id: i32) -> CUmemAllocationProp {
        let location = CUmemLocation { type_: location_type::DEVICE, id };
        CUmemAllocationProp { type_: allocation_type::PINNED, location, ..Default::default() }
    }

    #[test]
    fn a_block_is_charged_until_its_last_hold_is_released() {
        let device = device::get(0).unwrap();
        let block = create(GRANULARITY, &on_device(0)).unwrap();
        let handle = retain(&block);
        drop(block);
        assert!(device.memory.capacity() - device.memory.free_bytes() >= GRANULARITY);
        assert_eq!(release(handle), Ok(()));
        assert!(get(handle).is_ok());
        assert_eq!(release(handle), Ok(()));
        assert_eq!(release(handle), Err(CUresult::ERROR_INVALID_VALUE));
    }

    #[test]
    fn sizes_and_places_are_checked() {
        assert_eq!(create(1, &on_device(0)).err(), Some(CUresult::ERROR_INVALID_VALUE));
        assert_eq!(create(GRANULARITY, &on_device(9)).err(), Some(CUresult::ERROR_INVALID_DEVICE));
        assert_eq!(create(1 << 60, &on_device(0)).err(), Some(CUresult::ERROR_OUT_OF_MEMORY));
    }
}

//! Physical memory of `cuMemCreate`: blocks without an address, which can be mapped at several addresses.
//!
//! All blocks of a device lie in one sparse memory file, one after the other. Offsets are never reused, and a block that ends
//! gives its pages back as a hole. So file descriptors do not limit the number of blocks.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, PoisonError};

use katydid_cuda_sys::{CUmemAllocationProp, CUmemLocation, CUresult, allocation_type, location_type};
use katydid_driver_rules::memory::{GRANULARITY_BYTES, HANDLE_TYPE_FILE_DESCRIPTOR, is_host, reported_location};

use crate::ffi::Outcome;
use crate::memory::pages;
use crate::process::device::{self, Device};
use crate::process::handles::{Registry, new_handle};

/// `CU_MEM_CREATE_USAGE_TILE_POOL`: arrays may be mapped to the block.
const CREATE_USAGE_TILE_POOL: u16 = 1;

/// Mark after the bytes of a block's own file, followed by the UUID of its device.
const BLOCK_FILE_MARK: [u8; 16] = *b"katydid softblk\0";
/// Bytes of the mark and the UUID.
const BLOCK_FILE_TAIL_BYTES: usize = 32;

/// A block. Its memory is freed after the last mapping and the handle.
pub(crate) struct Block {
    /// Handle that programs know the block by.
    pub(crate) handle: usize,
    /// Device of its memory.
    pub(crate) device: &'static Device,
    /// Size in bytes, a multiple of [`GRANULARITY_BYTES`].
    pub(crate) size: u64,
    /// Offset in the device's file.
    offset: u64,
    /// Its own file, if other processes may have it.
    own: Option<OwnedFd>,
    /// Location that the program asked for. Memory of the host is not charged to a device.
    pub(crate) location: CUmemLocation,
    /// Whether arrays may be mapped to it.
    pub(crate) is_tiles: bool,
    /// Bytes charged to the device; 0 for another process's block.
    charged: u64,
    /// How often the handle may still be released: 1, plus 1 for each `cuMemRetainAllocationHandle`.
    holds: Mutex<u32>,
}

/// Blocks whose handle is alive.
static PHYSICAL_BLOCKS: Registry<Block> = Registry::new();

impl Block {
    /// Returns the file with the block's bytes, and their offset.
    pub(crate) fn file(&self) -> Outcome<(&OwnedFd, u64)> {
        match &self.own {
            Some(file) => Ok((file, 0)),
            None => Ok((self.device.memory.physical.file()?, self.offset)),
        }
    }

    /// Returns whether other processes may have it.
    pub(crate) fn is_shareable(&self) -> bool {
        self.own.is_some()
    }

    /// Returns a descriptor of its file, for another process.
    pub(crate) fn share(&self) -> Outcome<OwnedFd> {
        let file = self.own.as_ref().ok_or(CUresult::ERROR_INVALID_VALUE)?;
        file.try_clone().map_err(|_| CUresult::ERROR_OPERATING_SYSTEM)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // The block's own file ends when no process has it any more.
        if let (None, Ok(file)) = (&self.own, self.device.memory.physical.file()) {
            pages::punch(file, self.offset, self.size);
        }
        self.device.memory.refund(self.charged);
    }
}

/// Resolves a location, and returns the device whose file holds blocks there.
pub(crate) fn located(location: CUmemLocation) -> Outcome<(CUmemLocation, &'static Device)> {
    match location.type_ {
        location_type::DEVICE => Ok((location, device::get(location.id)?)),
        location_type::HOST_NUMA if location.id != 0 => Err(CUresult::ERROR_INVALID_VALUE),
        _ if is_host(location) => Ok((location, device::get(0)?)),
        _ => Err(CUresult::ERROR_INVALID_VALUE),
    }
}

/// `cuMemCreate`.
pub(crate) fn create(size: u64, properties: &CUmemAllocationProp) -> Outcome<Arc<Block>> {
    if properties.type_ != allocation_type::PINNED {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let (location, device) = located(properties.location)?;
    let is_shared = properties.requestedHandleTypes != 0;
    let is_possible = match location.type_ {
        location_type::HOST_NUMA_CURRENT => false,
        location_type::HOST => !is_shared,
        _ => true,
    };
    if !is_possible {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let location = reported_location(location);
    if properties.requestedHandleTypes & !HANDLE_TYPE_FILE_DESCRIPTOR != 0 {
        return Err(CUresult::ERROR_NOT_SUPPORTED);
    }
    if size == 0 || !size.is_multiple_of(GRANULARITY_BYTES) {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    device.memory.physical.file()?;
    let charged = if is_host(location) { 0 } else { size };
    device.memory.charge(charged)?;
    // A process without free descriptors still gets memory. Such a block cannot be shared.
    let own = is_shared.then(|| device_file(device, size).ok()).flatten();
    let offset = if own.is_some() { Ok(0) } else { device.memory.physical.allocate(size) };
    let offset = offset.inspect_err(|_| device.memory.refund(charged))?;
    let is_tiles = properties.usage & CREATE_USAGE_TILE_POOL != 0;
    let holds = Mutex::new(1);
    let block = Block { handle: new_handle(), device, size, offset, own, location, is_tiles, charged, holds };
    let block = Arc::new(block);
    PHYSICAL_BLOCKS.insert(block.handle, Arc::clone(&block));
    Ok(block)
}

/// Creates a file of `size` bytes for a block, followed by the identity of its device.
fn device_file(device: &Device, size: u64) -> io::Result<OwnedFd> {
    let file = File::from(pages::memory_file(size)?);
    file.write_all_at(&[&BLOCK_FILE_MARK[..], &device.uuid()].concat(), size)?;
    Ok(file.into())
}

/// `cuMemImportFromShareableHandle`: returns the block behind a descriptor, of another process or of this one. The descriptor
/// stays the caller's.
pub(crate) fn import(file: OwnedFd) -> Outcome<Arc<Block>> {
    let wrong = CUresult::ERROR_INVALID_VALUE;
    let file = File::from(file);
    let length = file.metadata().map_err(|_| wrong)?.len();
    let size = length
        .checked_sub(BLOCK_FILE_TAIL_BYTES as u64)
        .filter(|size| *size > 0 && size.is_multiple_of(GRANULARITY_BYTES));
    let size = size.ok_or(wrong)?;
    let mut tail = [0; BLOCK_FILE_TAIL_BYTES];
    file.read_exact_at(&mut tail, size).map_err(|_| wrong)?;
    let (mark, uuid) = tail.split_at(BLOCK_FILE_MARK.len());
    let device = device::all().iter().find(|device| device.uuid() == uuid).ok_or(CUresult::ERROR_INVALID_DEVICE)?;
    if mark != BLOCK_FILE_MARK {
        return Err(wrong);
    }
    let own = Some(OwnedFd::from(file));
    let is_tiles = false;
    let (location, holds) = (CUmemLocation { type_: location_type::DEVICE, id: device.ordinal }, Mutex::new(1));
    let block = Block { handle: new_handle(), device, size, offset: 0, own, location, is_tiles, charged: 0, holds };
    let block = Arc::new(block);
    PHYSICAL_BLOCKS.insert(block.handle, Arc::clone(&block));
    Ok(block)
}

/// The block behind a handle.
pub(crate) fn get(handle: u64) -> Outcome<Arc<Block>> {
    PHYSICAL_BLOCKS.get(handle as usize).ok_or(CUresult::ERROR_INVALID_VALUE)
}

/// `cuMemRelease`: ends the handle with its last hold, and the memory with its last mapping.
pub(crate) fn release(handle: u64) -> Outcome {
    let block = get(handle)?;
    let mut holds = block.holds.lock().unwrap_or_else(PoisonError::into_inner);
    *holds -= 1;
    if *holds == 0 {
        PHYSICAL_BLOCKS.remove(block.handle);
    }
    Ok(())
}

/// `cuMemRetainAllocationHandle`: keeps or revives the handle until one more release.
pub(crate) fn retain(block: &Arc<Block>) -> u64 {
    *block.holds.lock().unwrap_or_else(PoisonError::into_inner) += 1;
    PHYSICAL_BLOCKS.insert(block.handle, Arc::clone(block));
    block.handle as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on_device(id: i32) -> CUmemAllocationProp {
        let location = CUmemLocation { type_: location_type::DEVICE, id };
        CUmemAllocationProp { type_: allocation_type::PINNED, location, ..Default::default() }
    }

    #[test]
    fn a_block_is_charged_until_its_last_hold_is_released() {
        let device = device::get(0).unwrap();
        let block = create(GRANULARITY_BYTES, &on_device(0)).unwrap();
        let handle = retain(&block);
        drop(block);
        assert!(device.memory.capacity() - device.memory.free_bytes() >= GRANULARITY_BYTES);
        assert_eq!(release(handle), Ok(()));
        assert!(get(handle).is_ok());
        assert_eq!(release(handle), Ok(()));
        assert_eq!(release(handle), Err(CUresult::ERROR_INVALID_VALUE));
    }

    #[test]
    fn a_shared_block_is_charged_once_and_has_the_same_bytes() {
        let properties = CUmemAllocationProp { requestedHandleTypes: HANDLE_TYPE_FILE_DESCRIPTOR, ..on_device(0) };
        let block = create(GRANULARITY_BYTES, &properties).unwrap();
        let copy = import(block.share().unwrap()).unwrap();
        assert_eq!((copy.size, copy.device.ordinal, copy.charged), (GRANULARITY_BYTES, 0, 0));
        let (first, second) = (File::from(block.share().unwrap()), File::from(copy.share().unwrap()));
        first.write_all_at(b"through", 5000).unwrap();
        let mut bytes = [0; 7];
        second.read_exact_at(&mut bytes, 5000).unwrap();
        assert_eq!(&bytes, b"through");
        assert!(create(GRANULARITY_BYTES, &on_device(0)).unwrap().share().is_err());
        assert!(import(pages::memory_file(GRANULARITY_BYTES).unwrap()).is_err());
    }

    #[test]
    fn a_block_that_is_too_large_takes_nothing_from_those_that_follow() {
        let location = CUmemLocation { type_: location_type::HOST, id: 0 };
        let of_host = CUmemAllocationProp { type_: allocation_type::PINNED, location, ..Default::default() };
        for size in [1 << 47, 1 << 62] {
            assert_eq!(create(size, &of_host).err(), Some(CUresult::ERROR_OUT_OF_MEMORY));
        }
        for properties in [of_host, on_device(0)] {
            assert_eq!(release(create(GRANULARITY_BYTES, &properties).unwrap().handle as u64), Ok(()));
        }
    }

    #[test]
    fn sizes_and_places_are_checked() {
        assert_eq!(create(1, &on_device(0)).err(), Some(CUresult::ERROR_INVALID_VALUE));
        assert_eq!(create(GRANULARITY_BYTES, &on_device(9)).err(), Some(CUresult::ERROR_INVALID_DEVICE));
        assert_eq!(create(1 << 60, &on_device(0)).err(), Some(CUresult::ERROR_OUT_OF_MEMORY));
    }
}

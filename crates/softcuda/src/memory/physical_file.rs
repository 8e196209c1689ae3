//! The memory file of a device, which holds the blocks of `cuMemCreate` one after the other. It is as long as it takes: who saves the
//! process (CRIU) looks at every page of it, holes too.

use std::os::fd::OwnedFd;
use std::sync::{Mutex, OnceLock, PoisonError};

use katydid_cuda_sys::CUresult;

use crate::ffi::Outcome;
use crate::memory::pages;

/// Offsets that a memory file can have in all.
const MAX_MEMORY_FILE_BYTES: u64 = 1 << 46;
/// What it becomes longer by, at least.
const FILE_GROWTH_BYTES: u64 = 1 << 30;

/// The memory file of a device.
pub(crate) struct PhysicalFile {
    file: OnceLock<Option<OwnedFd>>,
    extent: Mutex<FileExtent>,
}

/// How far the file is used, and how long it is.
#[derive(Debug, Default)]
struct FileExtent {
    next: u64,
    length: u64,
}

impl PhysicalFile {
    /// Nothing is made before the first block.
    pub(crate) fn new() -> Self {
        Self { file: OnceLock::new(), extent: Mutex::default() }
    }

    /// Made at first use; without it no block can be had.
    pub(crate) fn file(&self) -> Outcome<&OwnedFd> {
        let file = self.file.get_or_init(|| pages::memory_file(0).ok());
        file.as_ref().ok_or(CUresult::ERROR_OPERATING_SYSTEM)
    }

    /// A place for `size` bytes in the file, behind all that were taken before; one that the file has not takes nothing.
    pub(crate) fn allocate(&self, size: u64) -> Outcome<u64> {
        let file = self.file()?;
        let mut extent = self.extent.lock().unwrap_or_else(PoisonError::into_inner);
        let end = extent
            .next
            .checked_add(size)
            .filter(|end| *end <= MAX_MEMORY_FILE_BYTES)
            .ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
        if end > extent.length {
            let length = end.max(extent.length + FILE_GROWTH_BYTES).min(MAX_MEMORY_FILE_BYTES);
            pages::lengthen(file, length).map_err(|_| CUresult::ERROR_OUT_OF_MEMORY)?;
            extent.length = length;
        }
        Ok(std::mem::replace(&mut extent.next, end))
    }
}

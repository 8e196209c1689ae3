//! The memory file of a device, which holds the blocks of `cuMemCreate` one after the other. It is only as long as necessary,
//! because CRIU looks at every page of it, holes too.

use std::os::fd::OwnedFd;
use std::sync::{Mutex, OnceLock, PoisonError};

use katydid_cuda_sys::CUresult;

use crate::ffi::Outcome;
use crate::memory::pages;

/// Largest size of a memory file.
const MAX_MEMORY_FILE_BYTES: u64 = 1 << 46;
/// Smallest growth of the file.
const FILE_GROWTH_BYTES: u64 = 1 << 30;

/// The memory file of a device.
pub(crate) struct PhysicalFile {
    file: OnceLock<Option<OwnedFd>>,
    extent: Mutex<FileExtent>,
}

/// Used and total length of the file.
#[derive(Debug, Default)]
struct FileExtent {
    next: u64,
    length: u64,
}

impl PhysicalFile {
    /// Creates no file before the first block.
    pub(crate) fn new() -> Self {
        Self { file: OnceLock::new(), extent: Mutex::default() }
    }

    /// Returns the file, created at first use. Without it there are no blocks.
    pub(crate) fn file(&self) -> Outcome<&OwnedFd> {
        let file = self.file.get_or_init(|| pages::memory_file(0).ok());
        file.as_ref().ok_or(CUresult::ERROR_OPERATING_SYSTEM)
    }

    /// Reserves `size` bytes at the end of the used part of the file. Reserves nothing on failure.
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

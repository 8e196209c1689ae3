//! The memory file of a device, which holds the blocks of `cuMemCreate` one after the other.

use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use katydid_cuda_sys::CUresult;

use crate::ffi::Outcome;
use crate::memory::pages;

/// Offsets that a memory file can have in all.
const FILE: u64 = 1 << 46;

/// The memory file of a device.
pub(crate) struct PhysicalFile {
    file: OnceLock<Option<OwnedFd>>,
    next: AtomicU64,
}

impl PhysicalFile {
    /// Nothing is made before the first block.
    pub(crate) fn new() -> Self {
        Self { file: OnceLock::new(), next: AtomicU64::new(0) }
    }

    /// Made at first use; without it no block can be had.
    pub(crate) fn file(&self) -> Outcome<&OwnedFd> {
        let file = self.file.get_or_init(|| pages::memory_file(FILE).ok());
        file.as_ref().ok_or(CUresult::ERROR_OPERATING_SYSTEM)
    }

    /// A place for `size` bytes in the file, behind all that were taken before; one that the file has not takes nothing.
    pub(crate) fn take_place(&self, size: u64) -> Outcome<u64> {
        let behind = |next: u64| next.checked_add(size).filter(|end| *end <= FILE);
        let taken = self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, behind);
        taken.map_err(|_| CUresult::ERROR_OUT_OF_MEMORY)
    }
}

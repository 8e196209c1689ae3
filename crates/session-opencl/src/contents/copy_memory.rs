//! Memory of the worker for a copy.

#![expect(unsafe_code, reason = "maps memory that the driver fills")]

use std::ptr;
use std::slice;

use katydid_opencl_sys::void;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use super::error::ContentsError;

/// Memory of the worker for a copy, in pages that use no memory before they are written.
pub(super) struct CopyMemory {
    pub(super) start: *mut void,
    pub(super) length: usize,
}

// SAFETY: plain memory, reached through `&self` for reading and `&mut self` for writing.
unsafe impl Send for CopyMemory {}
// SAFETY: as above.
unsafe impl Sync for CopyMemory {}

impl CopyMemory {
    pub(super) fn new(bytes: u64) -> Result<Self, ContentsError> {
        let none = || ContentsError::NoMemory { bytes };
        let length = usize::try_from(bytes.max(1)).map_err(|_| none())?;
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a fresh mapping at an address of the kernel's choice replaces nothing.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), length, protection, flags) }.map_err(|_| none())?;
        // SAFETY: the mapping is new and not shared; without large pages it is only slower to fill.
        let _ = unsafe { madvise(start, length, Advice::LinuxHugepage) };
        Ok(Self { start: start.cast(), length })
    }

    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: mapped by `new`; pages that no code has written are zeros.
        unsafe { slice::from_raw_parts(self.start.cast::<u8>(), self.length) }
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed exclusively.
        unsafe { slice::from_raw_parts_mut(self.start.cast::<u8>(), self.length) }
    }
}

impl Drop for CopyMemory {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`; no code has a reference any more.
        let _ = unsafe { munmap(self.start.cast(), self.length) };
    }
}

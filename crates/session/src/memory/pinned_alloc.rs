//! Host memory of the worker's that is registered with the driver, at places of its own.
//!
//! What a driver allocates of this kind takes addresses between those of modules, which a restore has to find free
//! (`worker/src/os/layout.rs`).

#![expect(unsafe_code, reason = "maps memory, and makes it known to the driver")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use katydid_cuda_sys::{CUresult, host_register_flags};
use katydid_driver::Driver;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Pages, until the value is dropped.
pub(crate) struct PinnedAlloc {
    driver: Arc<Driver>,
    start: *mut u8,
    size: usize,
    is_registered: AtomicBool,
}

// SAFETY: the pointer is the caller's to follow; the driver takes such memory from every thread.
unsafe impl Send for PinnedAlloc {}
// SAFETY: as above.
unsafe impl Sync for PinnedAlloc {}

impl PinnedAlloc {
    /// So many bytes of zeros, asked for at `place`; where memory lies there already, the system chooses another one.
    ///
    /// # Errors
    ///
    /// Error that the system returned.
    pub(crate) fn map(driver: &Arc<Driver>, address: usize, size: usize) -> Result<Self, Errno> {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping, in the place of no other.
        let start = unsafe { mmap_anonymous(std::ptr::with_exposed_provenance_mut(address), size, access, flags) }?;
        Ok(Self { driver: Arc::clone(driver), start: start.cast(), size, is_registered: AtomicBool::new(false) })
    }

    /// Makes them known to the driver, in the context that is current, for all contexts.
    ///
    /// # Errors
    ///
    /// The driver's: it would copy through memory of its own, at a lower speed.
    pub(crate) fn register(&self) -> Result<(), CUresult> {
        let flags = host_register_flags::PORTABLE;
        // SAFETY: mapped by `map`, and until this value is dropped.
        unsafe { self.driver.cuMemHostRegister_v2(self.start.cast(), self.size, flags) }.ok()?;
        self.is_registered.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// The driver has forgotten them, with the context.
    pub(crate) fn forget(&self) {
        self.is_registered.store(false, Ordering::Relaxed);
    }

    /// Address of the first page.
    pub(crate) fn start(&self) -> *mut u8 {
        self.start
    }

    /// The length of the mapping in bytes.
    pub(crate) fn size(&self) -> usize {
        self.size
    }
}

impl Drop for PinnedAlloc {
    fn drop(&mut self) {
        if *self.is_registered.get_mut() {
            // SAFETY: registered by `register`, and used by no code any more. What the driver cannot let go of now goes with the process.
            let _ = unsafe { self.driver.cuMemHostUnregister(self.start.cast()) };
        }
        // SAFETY: mapped by `map`, and no code has their addresses any more.
        let _ = unsafe { munmap(self.start.cast(), self.size) };
    }
}

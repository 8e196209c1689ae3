//! Host memory of the worker that is registered with the driver, at addresses of its own.
//!
//! A driver would allocate such memory at addresses between those of modules, which a restore has to find free
//! (`worker/src/os/layout.rs`).

#![expect(unsafe_code, reason = "maps memory, and makes it known to the driver")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use katydid_cuda_sys::{CUresult, host_register_flags};
use katydid_driver::Driver;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Registered pages, unmapped when the value is dropped.
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
    /// Maps so many bytes of zeros near `address`; if other memory lies there, the system chooses the address.
    ///
    /// # Errors
    ///
    /// The error of the system.
    pub(crate) fn map(driver: &Arc<Driver>, address: usize, size: usize) -> Result<Self, Errno> {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping, which replaces no other.
        let start = unsafe { mmap_anonymous(std::ptr::with_exposed_provenance_mut(address), size, access, flags) }?;
        Ok(Self { driver: Arc::clone(driver), start: start.cast(), size, is_registered: AtomicBool::new(false) })
    }

    /// Registers the pages with the driver, in the current context, for all contexts.
    ///
    /// # Errors
    ///
    /// The driver's code: it would then copy through its own memory, at a lower speed.
    pub(crate) fn register(&self) -> Result<(), CUresult> {
        let flags = host_register_flags::PORTABLE;
        // SAFETY: mapped by `map`, and until this value is dropped.
        unsafe { self.driver.cuMemHostRegister_v2(self.start.cast(), self.size, flags) }.ok()?;
        self.is_registered.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Notes that the driver has forgotten them, with the context.
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
            // SAFETY: registered by `register`, and no code uses it any more. If the driver fails now, the registration ends
            // with the process.
            let _ = unsafe { self.driver.cuMemHostUnregister(self.start.cast()) };
        }
        // SAFETY: mapped by `map`, and no code has their addresses any more.
        let _ = unsafe { munmap(self.start.cast(), self.size) };
    }
}

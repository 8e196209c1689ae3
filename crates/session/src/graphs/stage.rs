//! Stages: memory of the worker's that a graph copies from or to in the place of the program's.
//!
//! It is page-locked: of other memory a driver takes what it copies when the graph is launched, before the program's
//! part of the copy has run.

#![expect(unsafe_code, reason = "memory that a GPU and the link's reader take turns with")]

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use katydid_cuda_sys::{CUresult, host_alloc_flags};
use katydid_driver::Driver;

/// Bytes that all stages of a session may take.
const MOST: u64 = 64 << 30;

/// One block. The driver copies from or to it while its step runs; the program's part comes before or after that.
pub(crate) struct Stage {
    start: *mut u8,
    size: usize,
    driver: Arc<Driver>,
}

// SAFETY: reached through copies in and out only, which the graph's order keeps apart from the driver's.
unsafe impl Send for Stage {}
// SAFETY: as above.
unsafe impl Sync for Stage {}

impl Drop for Stage {
    fn drop(&mut self) {
        // SAFETY: the driver's own, made by `Stages::make`, and freed here only. What it cannot free now goes with the
        // process.
        let _ = unsafe { self.driver.cuMemFreeHost(self.start.cast()) };
    }
}

impl Stage {
    /// The address for the driver.
    pub(crate) fn address(&self) -> *mut u8 {
        self.start
    }

    fn holds(&self, offset: u64, size: usize) -> bool {
        usize::try_from(offset).is_ok_and(|offset| offset <= self.size && size <= self.size - offset)
    }
}

/// The stages of a session, by token.
#[derive(Default)]
pub(crate) struct Stages {
    all: Mutex<HashMap<u64, Arc<Stage>>>,
}

impl Stages {
    fn all(&self) -> MutexGuard<'_, HashMap<u64, Arc<Stage>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A stage of `size` bytes.
    ///
    /// # Errors
    ///
    /// `CUDA_ERROR_OUT_OF_MEMORY`.
    pub(crate) fn make(&self, driver: &Arc<Driver>, token: u64, size: u64) -> Result<Arc<Stage>, CUresult> {
        let mut all = self.all();
        let taken: u64 = all.values().map(|stage| stage.size as u64).sum();
        if size > MOST - taken.min(MOST) {
            return Err(CUresult::ERROR_OUT_OF_MEMORY);
        }
        let (mut start, flags) = (std::ptr::null_mut(), host_alloc_flags::PORTABLE);
        // SAFETY: the output is a local.
        unsafe { driver.cuMemHostAlloc(&raw mut start, size as usize, flags) }.ok()?;
        let start = start.cast::<u8>();
        // SAFETY: the driver gave `size` bytes, which may hold anything.
        unsafe { start.write_bytes(0, size as usize) };
        let stage = Arc::new(Stage { start, size: size as usize, driver: Arc::clone(driver) });
        all.insert(token, Arc::clone(&stage));
        Ok(stage)
    }

    pub(crate) fn forget(&self, token: u64) {
        self.all().remove(&token);
    }

    /// Takes what the program fills a stage with.
    ///
    /// # Errors
    ///
    /// `CUDA_ERROR_INVALID_VALUE` for bytes outside of it.
    pub(crate) fn fill(&self, token: u64, offset: u64, data: &[u8]) -> Result<(), CUresult> {
        let stage = self.all().get(&token).cloned().filter(|stage| stage.holds(offset, data.len()));
        let stage = stage.ok_or(CUresult::ERROR_INVALID_VALUE)?;
        // SAFETY: inside the stage, by the check; the driver reads it later, when the program has acknowledged.
        unsafe { stage.start.add(offset as usize).copy_from_nonoverlapping(data.as_ptr(), data.len()) };
        Ok(())
    }

    /// Bytes for the program.
    ///
    /// # Errors
    ///
    /// `CUDA_ERROR_INVALID_VALUE` for bytes outside of it.
    pub(crate) fn bytes(&self, token: u64, offset: u64, size: usize) -> Result<Vec<u8>, CUresult> {
        let stage = self.all().get(&token).cloned().filter(|stage| stage.holds(offset, size));
        let stage = stage.ok_or(CUresult::ERROR_INVALID_VALUE)?;
        let mut bytes = vec![0; size];
        // SAFETY: inside the stage, by the check; the driver has written it before it asked the program.
        unsafe { stage.start.add(offset as usize).copy_to_nonoverlapping(bytes.as_mut_ptr(), size) };
        Ok(bytes)
    }
}

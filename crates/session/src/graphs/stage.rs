//! Stages: memory of the worker's that a graph copies from or to in the place of the program's.
//!
//! It is page-locked: of other memory a driver takes what it copies when the graph is launched, before the program's
//! part of the copy has run. A driver waits for the GPU before it frees such memory, and the GPU may be waiting for the
//! program: so what a graph leaves is kept for the next one.

#![expect(unsafe_code, reason = "memory that a GPU and the link's reader take turns with")]

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use katydid_cuda_sys::{CUresult, host_alloc_flags};
use katydid_driver::Driver;

/// Bytes that all stages of a session may take.
const MOST: u64 = 64 << 30;
/// Bytes that are kept for stages to come.
const SPARE: u64 = 256 << 20;
/// A stage has memory of so many times its size at most, and of so many bytes at least.
const TIMES: usize = 4;
const LEAST: usize = 64 << 10;

/// One block. The driver copies from or to it while its step runs; the program's part comes before or after that.
pub(crate) struct Stage {
    start: *mut u8,
    size: usize,
    /// Bytes that it has memory for.
    room: usize,
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
    fn new(driver: &Arc<Driver>, size: usize) -> Result<Self, CUresult> {
        let (mut start, flags) = (std::ptr::null_mut(), host_alloc_flags::PORTABLE);
        // SAFETY: the output is a local.
        unsafe { driver.cuMemHostAlloc(&raw mut start, size, flags) }.ok()?;
        Ok(Self { start: start.cast(), size, room: size, driver: Arc::clone(driver) })
    }

    /// The address for the driver.
    pub(crate) fn address(&self) -> *mut u8 {
        self.start
    }

    fn holds(&self, offset: u64, size: usize) -> bool {
        usize::try_from(offset).is_ok_and(|offset| offset <= self.size && size <= self.size - offset)
    }
}

/// The stages of a session, by token.
///
/// The main loop makes and forgets them, and may wait for the GPU then; others fill and read them meanwhile.
#[derive(Default)]
pub(crate) struct Stages {
    all: Mutex<HashMap<u64, Arc<Stage>>>,
    /// Those that are no graph's any more.
    spare: Mutex<Vec<Stage>>,
}

impl Stages {
    fn all(&self) -> MutexGuard<'_, HashMap<u64, Arc<Stage>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spare(&self) -> MutexGuard<'_, Vec<Stage>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A stage of `size` bytes, which are zeros.
    ///
    /// # Errors
    ///
    /// `CUDA_ERROR_OUT_OF_MEMORY`.
    pub(crate) fn make(&self, driver: &Arc<Driver>, token: u64, size: u64) -> Result<Arc<Stage>, CUresult> {
        let taken: u64 = self.all().values().map(|stage| stage.room as u64).sum();
        if size > MOST - taken.min(MOST) {
            return Err(CUresult::ERROR_OUT_OF_MEMORY);
        }
        let size = size as usize;
        let stage = self.take_spare(size).map_or_else(|| Stage::new(driver, size), Ok)?;
        // SAFETY: it has room for `size` bytes, and is nobody else's.
        unsafe { stage.start.write_bytes(0, size) };
        let stage = Arc::new(stage);
        let before = self.all().insert(token, Arc::clone(&stage));
        drop(before);
        Ok(stage)
    }

    /// The closest of those that are kept.
    fn take_spare(&self, size: usize) -> Option<Stage> {
        let mut spare = self.spare();
        let fits = |stage: &Stage| stage.room >= size && stage.room <= LEAST.max(size.saturating_mul(TIMES));
        let fitting = spare.iter().enumerate().filter(|(_, stage)| fits(stage));
        let (at, _) = fitting.min_by_key(|(_, stage)| stage.room)?;
        let mut stage = spare.swap_remove(at);
        stage.size = size;
        Some(stage)
    }

    pub(crate) fn forget(&self, token: u64) {
        let gone = self.all().remove(&token);
        // Somebody who still reads it has the rest.
        let Some(stage) = gone.and_then(Arc::into_inner) else { return };
        let mut spare = self.spare();
        let kept: u64 = spare.iter().map(|stage| stage.room as u64).sum();
        if kept + stage.room as u64 <= SPARE {
            spare.push(stage);
        }
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

//! Staging blocks: the worker's memory that a graph copies from or to in place of the program's.
//!
//! It is page-locked: from pageable memory a driver copies when the graph is launched, before the program's part of the copy
//! has run. The worker allocates it, at addresses of its own: a driver would allocate it between those of modules, which a
//! restore has to find free. A driver waits for the GPU before it releases such memory, and the GPU may be waiting for the
//! program. So the memory of an ended graph is kept for the next one in the same context. The driver releases it with the
//! context.

#![expect(unsafe_code, reason = "memory that a GPU and the link's reader take turns with")]

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use katydid_cuda_sys::CUresult;
use katydid_driver::Driver;

use crate::memory::host_memory::PAGE_BYTES;
use crate::memory::pinned_alloc::PinnedAlloc;

/// Most bytes of all staging blocks of a session.
const MAX_STAGING_BYTES: u64 = 64 << 30;
/// Most bytes of spare memory for later staging blocks.
const MAX_SPARE_BYTES: u64 = 256 << 20;
/// A block is reused for a request if it has at most this many times the requested size.
const MAX_OVERSIZE_FACTOR: usize = 4;
const MIN_STAGING_BLOCK_BYTES: usize = 64 << 10;
/// Where the memory is requested (`worker/src/os/layout.rs`): one block after the other, and then from the start again.
const STAGING_ADDRESS_HINT: usize = 0x4b80_0000_0000;
const ADDRESS_RANGE_BYTES: usize = 256 << 30;

/// One block. The driver copies from or to it while its step runs; the program's part comes before or after that. The
/// program reaches it only through copies in and out, which the graph's order keeps apart from the driver's.
pub(crate) struct StagingBlock {
    pages: PinnedAlloc,
    size: usize,
    /// Wire id of the context in which it was made.
    context: u32,
}

impl StagingBlock {
    fn new(driver: &Arc<Driver>, context: u32, size: usize) -> Result<Self, CUresult> {
        static NEXT_ADDRESS: AtomicUsize = AtomicUsize::new(0);
        let bytes = size.max(1).checked_next_multiple_of(PAGE_BYTES as usize).ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
        let address = STAGING_ADDRESS_HINT + NEXT_ADDRESS.fetch_add(bytes, Ordering::Relaxed) % ADDRESS_RANGE_BYTES;
        let pages = PinnedAlloc::map(driver, address, bytes).map_err(|_| CUresult::ERROR_OUT_OF_MEMORY)?;
        pages.register()?;
        Ok(Self { pages, size, context })
    }

    /// Returns the bytes of its memory.
    fn byte_size(&self) -> usize {
        self.pages.size()
    }

    /// Returns the address for the driver.
    pub(crate) fn address(&self) -> *mut u8 {
        self.pages.start()
    }

    fn holds(&self, offset: u64, size: usize) -> bool {
        usize::try_from(offset).is_ok_and(|offset| offset <= self.size && size <= self.size - offset)
    }
}

/// The staging blocks of a session, by token.
///
/// The main loop makes and forgets them, and may wait for the GPU then; other threads fill and read them meanwhile.
#[derive(Default)]
pub(crate) struct StagingBlocks {
    blocks: Mutex<HashMap<u64, Arc<StagingBlock>>>,
    /// Blocks of ended graphs.
    spare: Mutex<Vec<StagingBlock>>,
}

impl StagingBlocks {
    fn all(&self) -> MutexGuard<'_, HashMap<u64, Arc<StagingBlock>>> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spare(&self) -> MutexGuard<'_, Vec<StagingBlock>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a staging block of `size` zero bytes in the current context.
    ///
    /// # Errors
    ///
    /// `CUDA_ERROR_OUT_OF_MEMORY`.
    pub(crate) fn make(
        &self,
        driver: &Arc<Driver>,
        context: u32,
        token: u64,
        size: u64,
    ) -> Result<Arc<StagingBlock>, CUresult> {
        let used_bytes: u64 = self.all().values().map(|block| block.byte_size() as u64).sum();
        if size > MAX_STAGING_BYTES - used_bytes.min(MAX_STAGING_BYTES) {
            return Err(CUresult::ERROR_OUT_OF_MEMORY);
        }
        let size = size as usize;
        let block = self.take_spare(context, size).map_or_else(|| StagingBlock::new(driver, context, size), Ok)?;
        // SAFETY: it has at least `size` bytes, and no other code uses it.
        unsafe { block.address().write_bytes(0, size) };
        let block = Arc::new(block);
        let before = self.all().insert(token, Arc::clone(&block));
        drop(before);
        Ok(block)
    }

    /// Returns the spare block of a context that fits best.
    fn take_spare(&self, context: u32, size: usize) -> Option<StagingBlock> {
        let mut spare = self.spare();
        let fits = |block: &StagingBlock| {
            block.byte_size() >= size
                && block.byte_size() <= MIN_STAGING_BLOCK_BYTES.max(size.saturating_mul(MAX_OVERSIZE_FACTOR))
        };
        let fitting = spare.iter().enumerate().filter(|(_, block)| block.context == context && fits(block));
        let (at, _) = fitting.min_by_key(|(_, block)| block.byte_size())?;
        let mut block = spare.swap_remove(at);
        block.size = size;
        Some(block)
    }

    pub(crate) fn forget(&self, token: u64) {
        let gone = self.all().remove(&token);
        // If a thread still reads it, that thread frees it.
        let Some(block) = gone.and_then(Arc::into_inner) else { return };
        let mut spare = self.spare();
        let spare_bytes: u64 = spare.iter().map(|block| block.byte_size() as u64).sum();
        if spare_bytes + block.byte_size() as u64 <= MAX_SPARE_BYTES {
            spare.push(block);
        }
    }

    /// Forgets the memory of staging blocks in a context that ended, also of those that executable graphs use.
    pub(crate) fn end_context(&self, context: u32) {
        let stays = |block: &StagingBlock| {
            let is_gone = block.context == context;
            if is_gone {
                block.pages.forget();
            }
            !is_gone
        };
        self.all().retain(|_, block| stays(block));
        self.spare().retain(stays);
    }

    /// Copies the program's bytes into a staging block.
    ///
    /// # Errors
    ///
    /// `CUDA_ERROR_INVALID_VALUE` for bytes outside of it.
    pub(crate) fn fill(&self, token: u64, offset: u64, data: &[u8]) -> Result<(), CUresult> {
        let block = self.all().get(&token).cloned().filter(|block| block.holds(offset, data.len()));
        let block = block.ok_or(CUresult::ERROR_INVALID_VALUE)?;
        // SAFETY: inside the staging block, by the check; the driver reads it later, when the program has acknowledged.
        unsafe { block.address().add(offset as usize).copy_from_nonoverlapping(data.as_ptr(), data.len()) };
        Ok(())
    }

    /// Returns bytes of a staging block for the program.
    ///
    /// # Errors
    ///
    /// `CUDA_ERROR_INVALID_VALUE` for bytes outside of it.
    pub(crate) fn bytes(&self, token: u64, offset: u64, size: usize) -> Result<Vec<u8>, CUresult> {
        let block = self.all().get(&token).cloned().filter(|block| block.holds(offset, size));
        let block = block.ok_or(CUresult::ERROR_INVALID_VALUE)?;
        let mut bytes = vec![0; size];
        // SAFETY: inside the staging block, by the check; the driver has written it before it asked the program.
        unsafe { block.address().add(offset as usize).copy_to_nonoverlapping(bytes.as_mut_ptr(), size) };
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use katydid_cuda_sys::host_register_flags;

    use super::*;
    use crate::tests::soft;

    const BLOCK_BYTES: u64 = 1 << 20;

    /// Memory that a context has left behind may be another process's, at the same addresses.
    #[test]
    fn staging_blocks_go_with_their_context_and_are_freed_by_no_other_thread() {
        let (driver, _guard) = soft::driver();
        let blocks = StagingBlocks::default();
        let held = blocks.make(&driver, 1, 7, BLOCK_BYTES).unwrap();
        blocks.make(&driver, 1, 8, BLOCK_BYTES).unwrap();
        blocks.forget(8);
        // SAFETY: takes a number; no code reads the context's memory from here on.
        unsafe { driver.cuDevicePrimaryCtxReset_v2(0) }.ok().unwrap();
        soft::retain(&driver);
        blocks.end_context(1);
        assert_eq!(blocks.fill(7, 0, &[1]), Err(CUresult::ERROR_INVALID_VALUE));
        let fresh = [1, 2].map(|token| blocks.make(&driver, 2, token, BLOCK_BYTES).unwrap());
        drop(held);
        for (block, token) in fresh.iter().zip(1..) {
            // SAFETY: memory of the staging block, which no code uses; it is registered again at once.
            unsafe {
                driver.cuMemHostUnregister(block.address().cast()).ok().unwrap();
                let flags = host_register_flags::PORTABLE;
                driver.cuMemHostRegister_v2(block.address().cast(), block.byte_size(), flags).ok().unwrap();
            }
            blocks.fill(token, BLOCK_BYTES - 3, &[1, 2, 3]).unwrap();
            assert_eq!(blocks.bytes(token, BLOCK_BYTES - 4, 4), Ok(vec![0, 1, 2, 3]));
        }
    }

    #[test]
    fn staging_blocks_of_a_graph_are_reused_within_its_context() {
        let (driver, _guard) = soft::driver();
        let blocks = StagingBlocks::default();
        let first = blocks.make(&driver, 1, 1, BLOCK_BYTES).unwrap().address();
        blocks.forget(1);
        assert_ne!(blocks.make(&driver, 2, 2, BLOCK_BYTES).unwrap().address(), first);
        assert_eq!(blocks.make(&driver, 1, 3, BLOCK_BYTES / 2).unwrap().address(), first);
    }
}

//! Occupancy: how many blocks of a function fit a multiprocessor at once, by the limits that the attributes show.

use std::sync::atomic::Ordering;

use katydid_cuda_sys::CUresult;
use katydid_ptx_exec::Kernel;

use crate::attributes::{BLOCK_THREADS, BLOCKS, REGISTERS, SHARED, SHARED_OPT_IN, SHARED_RESERVED, THREADS};
use crate::border::Outcome;
use crate::function::Settings;

/// Threads of a warp.
const WARP: u32 = 32;
/// Registers are given to a warp in pieces of this many.
const REGISTER_PIECE: u32 = 256;
/// Shared memory is given to a block in pieces of this many bytes.
const SHARED_PIECE: u32 = 128;

/// What of a kernel limits how many blocks of it fit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Needs {
    /// 32-bit registers of a thread, at least 1.
    registers: u32,
    /// Bytes of shared memory that the code declares.
    static_shared: u32,
    /// Threads of a block.
    most_threads: u32,
    /// Bytes of dynamic shared memory that a launch may ask for.
    most_dynamic: u32,
}

impl Needs {
    /// The needs of a kernel, with what has been set on it.
    pub(crate) fn of(kernel: &Kernel, settings: &Settings) -> Self {
        Self {
            registers: kernel.registers.max(1),
            static_shared: kernel.static_shared,
            most_threads: kernel.max_threads.min(BLOCK_THREADS),
            most_dynamic: settings.most_dynamic.load(Ordering::Relaxed),
        }
    }

    /// Blocks of `threads` threads with `dynamic` bytes of dynamic shared memory that fit; 0 if not even one does.
    pub(crate) fn blocks(&self, threads: i32, dynamic: usize) -> Outcome<u32> {
        let threads =
            u32::try_from(threads).ok().filter(|threads| *threads > 0).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        let dynamic = u32::try_from(dynamic).unwrap_or(u32::MAX);
        if threads > self.most_threads || dynamic > self.most_dynamic {
            return Ok(0);
        }
        let warps = threads.div_ceil(WARP);
        let shared = (self.static_shared + dynamic + SHARED_RESERVED).next_multiple_of(SHARED_PIECE);
        Ok(BLOCKS.min(THREADS / WARP / warps).min(self.resident_warps() / warps).min(SHARED / shared))
    }

    /// Warps whose registers fit; they are spread evenly over four schedulers.
    fn resident_warps(&self) -> u32 {
        let of_a_warp = (self.registers * WARP).next_multiple_of(REGISTER_PIECE);
        REGISTERS / of_a_warp / 4 * 4
    }

    /// The blocks that fill `multiprocessors`, and the block size, with the most resident threads. `dynamic` says how
    /// much dynamic shared memory a block size needs; sizes are tried largest first, `limit` 0 means none.
    pub(crate) fn best_block(
        &self,
        multiprocessors: u32,
        dynamic: impl Fn(i32) -> usize,
        limit: i32,
    ) -> Outcome<(i32, i32)> {
        let most = self.most_threads as i32;
        let most = if limit > 0 { most.min(limit) } else { most };
        let mut best = (0, 0, 0);
        let sizes = (1..=most).rev().filter(|size| *size == most || *size % WARP as i32 == 0);
        for size in sizes {
            let fitting = self.blocks(size, dynamic(size))? as i32;
            if fitting * size > best.0 {
                best = (fitting * size, size, fitting);
            }
        }
        Ok((best.2 * multiprocessors as i32, best.1))
    }

    /// Dynamic shared memory that each of `count` blocks of `threads` threads can have at once.
    pub(crate) fn available_shared(&self, count: i32, threads: i32) -> Outcome<usize> {
        let valid = |number: i32, most: u32| u32::try_from(number).ok().filter(|it| (1..=most).contains(it));
        let count = valid(count, BLOCKS).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        let threads = valid(threads, self.most_threads).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        if count * threads.next_multiple_of(WARP) > THREADS {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let each = SHARED / count / SHARED_PIECE * SHARED_PIECE;
        let of_a_block = each.saturating_sub(SHARED_RESERVED).min(SHARED_OPT_IN);
        Ok(of_a_block.saturating_sub(self.static_shared) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needs(registers: u32, static_shared: u32) -> Needs {
        Needs { registers, static_shared, most_threads: 1024, most_dynamic: 48 << 10 }
    }

    #[test]
    fn the_tightest_limit_counts() {
        assert_eq!(needs(16, 0).blocks(256, 0), Ok(8));
        assert_eq!(needs(16, 0).blocks(32, 0), Ok(32));
        assert_eq!(needs(255, 0).blocks(256, 0), Ok(1));
        assert_eq!(needs(16, 40_000).blocks(64, 0), Ok(5));
        assert_eq!(needs(16, 0).blocks(64, 48 << 10), Ok(4));
        assert_eq!(needs(16, 0).blocks(64, 64 << 10), Ok(0));
        assert_eq!(needs(16, 0).blocks(2048, 0), Ok(0));
        assert_eq!(needs(16, 0).blocks(0, 0), Err(CUresult::ERROR_INVALID_VALUE));
    }

    #[test]
    fn the_best_block_fills_the_multiprocessors() {
        assert_eq!(needs(16, 0).best_block(4, |_| 0, 0), Ok((8, 1024)));
        assert_eq!(needs(16, 0).best_block(4, |_| 0, 100), Ok((128, 64)));
    }

    #[test]
    fn available_shared_memory_is_what_blocks_leave_each_other() {
        assert_eq!(needs(16, 0).available_shared(2, 1024), Ok(SHARED as usize / 2 / 128 * 128 - 1024));
        assert_eq!(needs(16, 0).available_shared(1, 32), Ok(SHARED_OPT_IN as usize));
        assert_eq!(needs(16, 0).available_shared(4, 1024), Err(CUresult::ERROR_INVALID_VALUE));
    }
}

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

/// Blocks of `threads` threads with `dynamic` bytes of dynamic shared memory that fit; 0 if not even one does.
pub(crate) fn blocks(kernel: &Kernel, settings: &Settings, threads: i32, dynamic: usize) -> Outcome<u32> {
    let threads = u32::try_from(threads).ok().filter(|threads| *threads > 0).ok_or(CUresult::ERROR_INVALID_VALUE)?;
    let dynamic = u32::try_from(dynamic).unwrap_or(u32::MAX);
    let too_many = threads > kernel.max_threads.min(BLOCK_THREADS);
    if too_many || dynamic > settings.most_dynamic.load(Ordering::Relaxed) {
        return Ok(0);
    }
    let warps = threads.div_ceil(WARP);
    let by_registers = resident_warps(kernel) / warps;
    let shared = (kernel.static_shared + dynamic + SHARED_RESERVED).next_multiple_of(SHARED_PIECE);
    Ok(BLOCKS.min(THREADS / WARP / warps).min(by_registers).min(SHARED / shared))
}

/// Warps whose registers fit; they are spread evenly over four schedulers.
fn resident_warps(kernel: &Kernel) -> u32 {
    let of_a_warp = (kernel.registers.max(1) * WARP).next_multiple_of(REGISTER_PIECE);
    REGISTERS / of_a_warp / 4 * 4
}

/// The block size with the most resident threads, and the blocks that then fill `multiprocessors`. `dynamic` says how
/// much dynamic shared memory a block size needs; sizes are tried largest first, `limit` 0 means none.
pub(crate) fn best_block(
    kernel: &Kernel,
    settings: &Settings,
    multiprocessors: u32,
    dynamic: impl Fn(i32) -> usize,
    limit: i32,
) -> Outcome<(i32, i32)> {
    let most = kernel.max_threads.min(BLOCK_THREADS) as i32;
    let most = if limit > 0 { most.min(limit) } else { most };
    let mut best = (0, 0, 0);
    let sizes = (1..=most).rev().filter(|size| *size == most || *size % WARP as i32 == 0);
    for size in sizes {
        let fitting = blocks(kernel, settings, size, dynamic(size))? as i32;
        if fitting * size > best.0 {
            best = (fitting * size, size, fitting);
        }
    }
    Ok((best.2 * multiprocessors as i32, best.1))
}

/// Dynamic shared memory that each of `count` blocks of `threads` threads can have at once.
pub(crate) fn available_shared(kernel: &Kernel, count: i32, threads: i32) -> Outcome<usize> {
    let valid = |number: i32, most: u32| u32::try_from(number).ok().filter(|it| (1..=most).contains(it));
    let count = valid(count, BLOCKS).ok_or(CUresult::ERROR_INVALID_VALUE)?;
    let threads = valid(threads, kernel.max_threads.min(BLOCK_THREADS)).ok_or(CUresult::ERROR_INVALID_VALUE)?;
    if count * threads.next_multiple_of(WARP) > THREADS {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let each = SHARED / count / SHARED_PIECE * SHARED_PIECE;
    let of_a_block = each.saturating_sub(SHARED_RESERVED).min(SHARED_OPT_IN);
    Ok(of_a_block.saturating_sub(kernel.static_shared) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(registers: u32, shared: u32) -> Kernel {
        Kernel {
            name: "k".to_owned(),
            params: Vec::new(),
            param_bytes: 0,
            static_shared: shared,
            local_bytes: 0,
            const_bytes: 0,
            registers,
            max_threads: 1024,
            required_block: None,
            ptx_version: 90,
            target: 90,
        }
    }

    fn fitting(kernel: &Kernel, threads: i32, dynamic: usize) -> Outcome<u32> {
        blocks(kernel, &Settings::for_kernel(kernel), threads, dynamic)
    }

    #[test]
    fn the_tightest_limit_counts() {
        assert_eq!(fitting(&kernel(16, 0), 256, 0), Ok(8));
        assert_eq!(fitting(&kernel(16, 0), 32, 0), Ok(32));
        assert_eq!(fitting(&kernel(255, 0), 256, 0), Ok(1));
        assert_eq!(fitting(&kernel(16, 40_000), 64, 0), Ok(5));
        assert_eq!(fitting(&kernel(16, 0), 64, 48 * 1024), Ok(4));
        assert_eq!(fitting(&kernel(16, 0), 64, 64 * 1024), Ok(0));
        assert_eq!(fitting(&kernel(16, 0), 2048, 0), Ok(0));
        assert_eq!(fitting(&kernel(16, 0), 0, 0), Err(CUresult::ERROR_INVALID_VALUE));
    }

    #[test]
    fn the_best_block_fills_the_multiprocessors() {
        let kernel = kernel(16, 0);
        let settings = Settings::for_kernel(&kernel);
        assert_eq!(best_block(&kernel, &settings, 4, |_| 0, 0), Ok((8, 1024)));
        assert_eq!(best_block(&kernel, &settings, 4, |_| 0, 100), Ok((128, 64)));
    }

    #[test]
    fn available_shared_memory_is_what_blocks_leave_each_other() {
        assert_eq!(available_shared(&kernel(16, 0), 2, 1024), Ok(SHARED as usize / 2 / 128 * 128 - 1024));
        assert_eq!(available_shared(&kernel(16, 0), 1, 32), Ok(SHARED_OPT_IN as usize));
        assert_eq!(available_shared(&kernel(16, 0), 4, 1024), Err(CUresult::ERROR_INVALID_VALUE));
    }
}

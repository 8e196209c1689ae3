//! Occupancy: how many blocks of a function fit a multiprocessor at once, by the limits in the device's attributes.

use std::sync::atomic::Ordering;

use katydid_cuda_sys::CUresult;
use katydid_driver_rules::occupancy::{self as rules, BlockSearch, WARP_THREADS};
use katydid_ptx_exec::{Kernel, MULTIPROCESSOR_THREADS, RESERVED_SHARED_BYTES};

use crate::code::function_settings::FunctionSettings;
use crate::ffi::Outcome;
use crate::process::attributes::{
    MAX_BLOCK_SHARED_BYTES, MAX_BLOCK_THREADS, MULTIPROCESSOR_BLOCKS, MULTIPROCESSOR_REGISTERS,
    MULTIPROCESSOR_SHARED_BYTES,
};

/// Granule in which blocks get shared memory, in bytes.
const SHARED_GRANULE_BYTES: u32 = 128;

/// The needs of a kernel that limit how many of its blocks fit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockNeeds {
    /// 32-bit registers of a thread.
    registers: u32,
    /// Bytes of shared memory that the code declares.
    static_shared: u32,
    /// Threads of a block.
    most_threads: u32,
    /// Bytes of dynamic shared memory that a launch may ask for.
    most_dynamic: u32,
}

impl BlockNeeds {
    /// Returns the needs of a kernel with its settings.
    pub(crate) fn of(kernel: &Kernel, settings: &FunctionSettings) -> Self {
        Self {
            registers: kernel.registers,
            static_shared: kernel.static_shared,
            most_threads: kernel.max_threads.min(MAX_BLOCK_THREADS).min(threads_by_registers(kernel)),
            most_dynamic: settings.most_dynamic.load(Ordering::Relaxed),
        }
    }

    /// Returns the needs of a kernel without settings.
    pub(crate) fn plain(registers: u32, static_shared: u32, max_threads: u32) -> Self {
        let most_dynamic = MAX_BLOCK_SHARED_BYTES.saturating_sub(static_shared);
        Self {
            registers: registers.max(1),
            static_shared,
            most_threads: max_threads.min(MAX_BLOCK_THREADS),
            most_dynamic,
        }
    }

    /// Returns how many blocks of `threads` threads with `dynamic` bytes of dynamic shared memory fit, 0 if not even one. As on a
    /// GPU, limits on blocks in the code do not count here.
    pub(crate) fn blocks(&self, threads: i32, dynamic: usize) -> Outcome<u32> {
        let threads =
            u32::try_from(threads).ok().filter(|threads| *threads > 0).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        let dynamic = u32::try_from(dynamic).unwrap_or(u32::MAX);
        if threads > MAX_BLOCK_THREADS || dynamic > self.most_dynamic {
            return Ok(0);
        }
        let warps = threads.div_ceil(WARP_THREADS);
        let shared = (self.static_shared + dynamic + RESERVED_SHARED_BYTES).next_multiple_of(SHARED_GRANULE_BYTES);
        Ok(MULTIPROCESSOR_BLOCKS
            .min(MULTIPROCESSOR_THREADS / WARP_THREADS / warps)
            .min(resident_warps(self.registers) / warps)
            .min(MULTIPROCESSOR_SHARED_BYTES / shared))
    }

    /// Returns the blocks that fill `multiprocessors` and the block size, for the most resident threads. `dynamic` computes the
    /// dynamic shared memory of a block size. The search starts with the largest size; a `limit` of 0 means none.
    pub(crate) fn best_block(
        &self,
        multiprocessors: u32,
        dynamic: impl Fn(i32) -> usize,
        limit: i32,
    ) -> Outcome<(i32, i32)> {
        let (most, warp, full) = (self.most_threads as i32, WARP_THREADS as i32, MULTIPROCESSOR_THREADS as i32);
        let blocks = |size| Ok(self.blocks(size, dynamic(size))? as i32);
        let (size, each) = BlockSearch { most, limit, warp, full }.best(blocks)?;
        Ok((each * multiprocessors as i32, size))
    }

    /// Returns the dynamic shared memory that each of `count` blocks of `threads` threads can have at once. It is an even share;
    /// as in the real driver, the part that the system reserves is not deducted.
    pub(crate) fn available_shared(&self, count: i32, threads: i32) -> Outcome<usize> {
        let count = u32::try_from(count).ok().filter(|count| *count > 0).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        if count > self.blocks(threads, 0)? {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let each = MULTIPROCESSOR_SHARED_BYTES / count / SHARED_GRANULE_BYTES * SHARED_GRANULE_BYTES;
        Ok(each.saturating_sub(self.static_shared).min(self.most_dynamic) as usize)
    }
}

/// Returns how many warps have room for their registers on a multiprocessor.
fn resident_warps(registers: u32) -> u32 {
    rules::resident_warps(registers, MULTIPROCESSOR_REGISTERS)
}

/// Returns the threads of the largest block whose registers fit.
pub(crate) fn threads_by_registers(kernel: &Kernel) -> u32 {
    rules::threads_by_registers(kernel.registers, MULTIPROCESSOR_REGISTERS)
}

/// Returns the most registers of a thread with which a block of `threads` threads fits a multiprocessor.
pub(crate) fn most_registers(threads: u32) -> u32 {
    let warps = threads.clamp(1, MAX_BLOCK_THREADS).div_ceil(WARP_THREADS).next_multiple_of(4);
    MULTIPROCESSOR_REGISTERS / (warps * WARP_THREADS) / 8 * 8
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needs(registers: u32, static_shared: u32) -> BlockNeeds {
        BlockNeeds { registers, static_shared, most_threads: 1024, most_dynamic: 48 << 10 }
    }

    /// One kernel after the other, and what was asked about it.
    #[test]
    fn answers_are_those_of_an_h200() {
        let (mut kernel, mut case_count) = ([0; 3], 0);
        for line in include_str!("occupancy/h200.txt").lines().filter(|line| !line.starts_with('#')) {
            let mut words = line.split(' ');
            let kind = words.next().unwrap();
            let numbers: Vec<Option<i32>> = words.map(|word| word.parse().ok()).collect();
            let number = |at: usize| numbers[at].unwrap();
            if kind == "k" {
                kernel = [number(0), number(1), number(2)].map(i32::cast_unsigned);
                continue;
            }
            let [most_threads, static_shared, registers] = kernel;
            let needs = BlockNeeds { registers, static_shared, most_threads, most_dynamic: number(0).cast_unsigned() };
            match kind {
                "a" => assert_eq!(needs.blocks(number(1), number(2) as usize), Ok(number(3) as u32), "{line}"),
                "p" => assert_eq!(
                    needs.best_block(132, |_| number(2) as usize, number(1)),
                    Ok((number(3), number(4))),
                    "{line}"
                ),
                _ => assert_eq!(
                    needs.available_shared(number(1), number(2)).ok(),
                    numbers[3].map(|bytes| bytes as usize),
                    "{line}"
                ),
            }
            case_count += 1;
        }
        assert!(case_count > 500);
    }

    #[test]
    fn occupancy_of_impossible_blocks_is_refused() {
        assert_eq!(needs(16, 0).blocks(0, 0), Err(CUresult::ERROR_INVALID_VALUE));
        assert_eq!(needs(16, 0).available_shared(0, 32), Err(CUresult::ERROR_INVALID_VALUE));
    }
}

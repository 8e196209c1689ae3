//! Occupancy: the allocation of registers, and the search for the best block size.

use crate::outcome::{Outcome, check};

/// Threads of a warp.
pub const WARP_THREADS: u32 = 32;
/// Registers are allocated to a warp in pieces of this many.
const WARP_REGISTER_GRANULE: u32 = 256;
/// Warps are spread evenly over this many schedulers of a multiprocessor.
const MULTIPROCESSOR_SCHEDULERS: u32 = 4;
/// `CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE`, which changes nothing here.
const OCCUPANCY_FLAGS: u32 = 1;

/// Checks the flags of an occupancy query; unknown ones are `ERROR_INVALID_VALUE`.
#[inline]
pub const fn check_flags(flags: u32) -> Outcome {
    check(flags & !OCCUPANCY_FLAGS == 0)
}

/// Returns how many warps fit the registers of a multiprocessor, with `registers` registers a thread.
#[inline]
pub const fn resident_warps(registers: u32, available: u32) -> u32 {
    let registers = if registers == 0 { 1 } else { registers };
    let of_a_warp = (registers * WARP_THREADS).next_multiple_of(WARP_REGISTER_GRANULE);
    available / of_a_warp / MULTIPROCESSOR_SCHEDULERS * MULTIPROCESSOR_SCHEDULERS
}

/// Returns the threads of the largest block that fits the registers.
#[inline]
pub const fn threads_by_registers(registers: u32, available: u32) -> u32 {
    resident_warps(registers, available) * WARP_THREADS
}

/// The search for the block size that keeps the most threads on a multiprocessor.
#[derive(Debug, Clone, Copy)]
pub struct BlockSearch {
    /// Threads of the largest block that the code can have.
    pub most: i32,
    /// The program's own limit; 0 or less for none.
    pub limit: i32,
    /// Threads of a warp.
    pub warp: i32,
    /// Most threads of a multiprocessor.
    pub full: i32,
}

impl BlockSearch {
    /// Returns the best size, and the blocks of it that fit. The search goes from the largest size downwards in steps of a
    /// warp; the first of equal sizes wins. `blocks` returns how many blocks of a size fit.
    ///
    /// # Errors
    ///
    /// Those of `blocks`.
    pub fn best(&self, mut blocks: impl FnMut(i32) -> Outcome<i32>) -> Outcome<(i32, i32)> {
        let most = if self.limit <= 0 { self.most } else { self.most.min(self.limit) };
        let (mut best, mut threads) = ((0, 0), 0);
        let mut size = (most + self.warp - 1) / self.warp * self.warp;
        while size > 0 && threads < self.full {
            let tried = size.min(most);
            let each = blocks(tried)?;
            if each * tried > threads {
                (best, threads) = ((tried, each), each * tried);
            }
            size -= self.warp;
        }
        Ok(best)
    }
}

#[cfg(test)]
mod tests {
    use katydid_cuda_sys::CUresult;

    use super::*;

    /// Returns the blocks that fit by threads alone, at most 32, as for a small kernel on an H200.
    fn by_threads(size: i32) -> Outcome<i32> {
        let warps = (size + 31) / 32;
        Ok((64 / warps).min(32))
    }

    fn search(most: i32, limit: i32) -> BlockSearch {
        BlockSearch { most, limit, warp: 32, full: 2048 }
    }

    #[test]
    fn the_largest_size_that_fills_the_multiprocessor_wins() {
        assert_eq!(search(1024, 0).best(by_threads), Ok((1024, 2)));
    }

    #[test]
    fn a_limit_is_tried_as_it_is_then_in_whole_warps() {
        assert_eq!((search(100, 0).best(by_threads), search(1024, 100).best(by_threads)), (Ok((64, 32)), Ok((64, 32))));
    }

    #[test]
    fn code_that_fits_nowhere_has_no_size() {
        assert_eq!(search(64, 0).best(|_| Ok(0)), Ok((0, 0)));
        assert_eq!(search(64, 0).best(|_| Err(CUresult::ERROR_UNKNOWN)), Err(CUresult::ERROR_UNKNOWN));
    }

    #[test]
    fn registers_limit_the_threads_of_a_block() {
        assert_eq!(
            [0, 8, 32, 64, 255].map(|registers| threads_by_registers(registers, 65536)),
            [8192, 8192, 2048, 1024, 256]
        );
        assert_eq!((check_flags(1), check_flags(2)), (Ok(()), Err(CUresult::ERROR_INVALID_VALUE)));
    }
}

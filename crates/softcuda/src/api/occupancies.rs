//! Occupancy: planning by the limits that the device shows.
//!
//! Functions and library kernels are both accepted, the latter as of the current context.

#![expect(unsafe_code, reason = "functions of the driver API take raw pointers")]

use katydid_cuda_sys::{CUfunction, CUoccupancyB2DSize, CUresult};

use crate::border::{Out, Outcome, api};
use crate::current;
use crate::function::callable;
use crate::occupancy::Needs;

/// `CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE`, which changes nothing here.
const FLAGS: u32 = 1;

/// Refuses unknown flags.
fn check(flags: u32) -> Outcome {
    if flags & !FLAGS == 0 { Ok(()) } else { Err(CUresult::ERROR_INVALID_VALUE) }
}

/// Blocks that fit a multiprocessor.
fn fitting(function: CUfunction, threads: i32, dynamic: usize) -> Outcome<i32> {
    let (kernel, settings) = callable(function, &current::usable()?)?;
    Ok(Needs::of(&kernel, &settings).blocks(threads, dynamic)? as i32)
}

/// The best block size; `sizes` says what shared memory a block size needs, else it is `dynamic`.
fn best(function: CUfunction, sizes: CUoccupancyB2DSize, dynamic: usize, limit: i32) -> Outcome<(i32, i32)> {
    let context = current::usable()?;
    let (kernel, settings) = callable(function, &context)?;
    let needed = |threads| match sizes {
        // SAFETY: the program gave this function to be asked about block sizes during the call.
        Some(size) => unsafe { size(threads) },
        None => dynamic,
    };
    Needs::of(&kernel, &settings).best_block(context.device.multiprocessors(), needed, limit)
}

api! {
    /// 0 if not even one block fits.
    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(count: Out<i32>, of: CUfunction, threads: i32, dynamic: usize) {
        count.set(fitting(of, threads, dynamic)?);
    }

    /// The one flag there is changes nothing here.
    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        count: Out<i32>,
        of: CUfunction,
        threads: i32,
        dynamic: usize,
        flags: u32,
    ) {
        check(flags)?;
        count.set(fitting(of, threads, dynamic)?);
    }

    /// The program's function is asked for the shared memory of each size tried.
    fn cuOccupancyMaxPotentialBlockSize(
        grid: Out<i32>,
        block: Out<i32>,
        of: CUfunction,
        sizes: CUoccupancyB2DSize,
        dynamic: usize,
        limit: i32,
    ) {
        let (blocks, threads) = best(of, sizes, dynamic, limit)?;
        grid.set(blocks);
        block.set(threads);
    }

    /// The one flag there is changes nothing here.
    fn cuOccupancyMaxPotentialBlockSizeWithFlags(
        grid: Out<i32>,
        block: Out<i32>,
        of: CUfunction,
        sizes: CUoccupancyB2DSize,
        dynamic: usize,
        limit: i32,
        flags: u32,
    ) {
        check(flags)?;
        let (blocks, threads) = best(of, sizes, dynamic, limit)?;
        grid.set(blocks);
        block.set(threads);
    }

    /// In bytes, for each of that many blocks.
    fn cuOccupancyAvailableDynamicSMemPerBlock(size: Out<usize>, of: CUfunction, count: i32, threads: i32) {
        let (kernel, settings) = callable(of, &current::usable()?)?;
        size.set(Needs::of(&kernel, &settings).available_shared(count, threads)?);
    }
}

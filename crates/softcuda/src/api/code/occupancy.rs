//! Occupancy: planning by the limits that the device reports.
//!
//! The functions accept functions and library kernels, the latter in the current context.

#![expect(unsafe_code, reason = "functions of the driver API take raw pointers")]

use katydid_cuda_sys::{CUfunction, CUlaunchConfig, CUoccupancyB2DSize};
use katydid_driver_rules::cluster::requested_cluster;
use katydid_driver_rules::launch::{attributes, threads};
use katydid_driver_rules::occupancy::check_flags;

use crate::code::clusters;
use crate::code::library::callable;
use crate::code::occupancy::BlockNeeds;
use crate::context::stack;
use crate::ffi::{In, Out, Outcome, api};

/// Returns how many blocks fit a multiprocessor.
fn fitting(function: CUfunction, threads: i32, dynamic: usize) -> Outcome<i32> {
    let (kernel, settings) = callable(function, &*stack::usable()?)?;
    Ok(BlockNeeds::of(&kernel, &settings).blocks(threads, dynamic)? as i32)
}

/// Returns the best grid and block size. `sizes` computes the shared memory of a block size; without it, `dynamic` counts.
fn best(function: CUfunction, sizes: CUoccupancyB2DSize, dynamic: usize, limit: i32) -> Outcome<(i32, i32)> {
    let context = stack::usable()?;
    let (kernel, settings) = callable(function, &context)?;
    let needed = |threads| match sizes {
        // SAFETY: the program gave this function to be asked about block sizes during the call.
        Some(size) => unsafe { size(threads) },
        None => dynamic,
    };
    BlockNeeds::of(&kernel, &settings).best_block(context.device.multiprocessors(), needed, limit)
}

/// Returns the largest cluster of a launch, and how many clusters of the requested size the device holds.
///
/// # Safety
///
/// `config` must have as many attributes as it says.
unsafe fn clusters_of(function: CUfunction, config: &CUlaunchConfig) -> Outcome<(u32, u32)> {
    let context = stack::usable()?;
    let (kernel, settings) = callable(function, &context)?;
    // SAFETY: the contract of this function.
    let attributes: Vec<_> = unsafe { attributes(config) }?.collect();
    let grid = [config.gridDimX, config.gridDimY, config.gridDimZ];
    let cluster = clusters::of_launch(requested_cluster(&attributes), grid, &kernel, &settings)?;
    let threads = i32::try_from(threads([config.blockDimX, config.blockDimY, config.blockDimZ])).unwrap_or(i32::MAX);
    let each = BlockNeeds::of(&kernel, &settings).blocks(threads, config.sharedMemBytes as usize)?;
    let blocks = each.saturating_mul(context.device.multiprocessors());
    Ok((clusters::potential(&settings, blocks), clusters::active(cluster, blocks)))
}

api! {
    /// Returns the number of blocks, 0 if not even one fits.
    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(count: Out<i32>, of: CUfunction, threads: i32, dynamic: usize) {
        count.set(fitting(of, threads, dynamic)?);
    }

    /// As without flags: the only flag changes nothing here.
    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        count: Out<i32>,
        of: CUfunction,
        threads: i32,
        dynamic: usize,
        flags: u32,
    ) {
        check_flags(flags)?;
        count.set(fitting(of, threads, dynamic)?);
    }

    /// Returns the best grid and block size. Calls the program's function for the shared memory of each tried size.
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

    /// As without flags: the only flag changes nothing here.
    fn cuOccupancyMaxPotentialBlockSizeWithFlags(
        grid: Out<i32>,
        block: Out<i32>,
        of: CUfunction,
        sizes: CUoccupancyB2DSize,
        dynamic: usize,
        limit: i32,
        flags: u32,
    ) {
        check_flags(flags)?;
        let (blocks, threads) = best(of, sizes, dynamic, limit)?;
        grid.set(blocks);
        block.set(threads);
    }

    /// Returns the dynamic shared memory that each of `count` blocks can have, in bytes.
    fn cuOccupancyAvailableDynamicSMemPerBlock(size: Out<usize>, of: CUfunction, count: i32, threads: i32) {
        let (kernel, settings) = callable(of, &*stack::usable()?)?;
        size.set(BlockNeeds::of(&kernel, &settings).available_shared(count, threads)?);
    }

    /// Returns the largest cluster of such a launch: 8, or 16 if the kernel allows it.
    fn cuOccupancyMaxPotentialClusterSize(size: Out<i32>, of: CUfunction, config: In<CUlaunchConfig>) {
        // SAFETY: the caller's configuration is complete.
        let (clusters, _) = unsafe { clusters_of(of, &config.0) }?;
        size.set(clusters as i32);
    }

    /// Returns how many clusters the device holds, 0 for a launch without clusters.
    fn cuOccupancyMaxActiveClusters(count: Out<i32>, of: CUfunction, config: In<CUlaunchConfig>) {
        // SAFETY: the caller's configuration is complete.
        let (_, clusters) = unsafe { clusters_of(of, &config.0) }?;
        count.set(clusters as i32);
    }
}

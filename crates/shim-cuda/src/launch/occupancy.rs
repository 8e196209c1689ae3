//! Occupancy: the worker answers once for each shape, and the code's record keeps the answer.
//!
//! The search for the best block size runs here, with the program's own function for shared memory, as in the driver.
#![expect(unsafe_code, reason = "writes pointers of C callers and calls their function")]

use katydid_cuda_sys::{CUfunction, CUoccupancyB2DSize, CUresult, device_attribute, function_attribute};
use katydid_driver_rules::occupancy::{BlockSearch, check_flags};
use katydid_wire::message::{kdAvailableSharedMemory, kdOccupancy};

use crate::context::request::call;
use crate::context::{device, stack};
use crate::ffi::arguments::out;
use crate::launch::target::LaunchTarget;

/// Returns how many blocks of this shape fit on a multiprocessor.
pub(crate) fn blocks(target: &LaunchTarget, block_size: i32, dynamic: u64, flags: u32) -> Result<i32, CUresult> {
    check_flags(flags)?;
    if block_size <= 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let (function, kernel) = target.wire();
    // The message goes to the current context.
    let device = stack::ids().map_or(0, |home| home.device);
    target.code_on(device)?.occupancy((block_size, dynamic, flags), || {
        let message = kdOccupancy { function, kernel, blockSize: block_size, dynamicSize: dynamic, flags };
        call(&message).map(|reply| reply.blocks)
    })
}

/// # Safety
///
/// `target` is null or writable; so are the outputs of every function below.
pub(crate) unsafe fn max_active_blocks(
    target: *mut i32,
    function: CUfunction,
    block_size: i32,
    dynamic: usize,
) -> Result<(), CUresult> {
    // SAFETY: handed on.
    unsafe { max_active_blocks_with_flags(target, function, block_size, dynamic, 0) }
}

/// # Safety
///
/// As [`max_active_blocks`].
pub(crate) unsafe fn max_active_blocks_with_flags(
    target: *mut i32,
    function: CUfunction,
    block_size: i32,
    dynamic: usize,
    flags: u32,
) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    stack::active()?;
    target.write(blocks(&LaunchTarget::of(function)?, block_size, dynamic as u64, flags)?);
    Ok(())
}

/// # Safety
///
/// As [`max_active_blocks`]; `shared` is null or a function of the program.
pub(crate) unsafe fn max_potential_block_size(
    grid: *mut i32,
    block: *mut i32,
    function: CUfunction,
    shared: CUoccupancyB2DSize,
    dynamic: usize,
    limit: i32,
) -> Result<(), CUresult> {
    // SAFETY: handed on.
    unsafe { max_potential_block_size_with_flags(grid, block, function, shared, dynamic, limit, 0) }
}

/// # Safety
///
/// As [`max_potential_block_size`].
pub(crate) unsafe fn max_potential_block_size_with_flags(
    grid: *mut i32,
    block: *mut i32,
    function: CUfunction,
    shared: CUoccupancyB2DSize,
    dynamic: usize,
    limit: i32,
    flags: u32,
) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let (grid, block) = unsafe { (out(grid)?, out(block)?) };
    let target = LaunchTarget::of(function)?;
    let context = stack::active()?;
    let device = &device::all()?[context.device as usize];
    let most = target.code_on(context.device)?.attribute(function_attribute::MAX_THREADS_PER_BLOCK)?;
    let search = BlockSearch {
        most,
        limit,
        warp: device.value(device_attribute::WARP_SIZE).max(1),
        full: device.value(device_attribute::MAX_THREADS_PER_MULTIPROCESSOR),
    };
    let (size, blocks_each) = search.best(|size| {
        // SAFETY: the program gave the function for this purpose.
        let bytes = shared.map_or(dynamic, |shared| unsafe { shared(size) });
        blocks(&target, size, bytes as u64, flags)
    })?;
    grid.write(blocks_each * device.value(device_attribute::MULTIPROCESSOR_COUNT));
    block.write(size);
    Ok(())
}

/// Returns the dynamic shared memory per block, in bytes, with which `blocks` blocks fit on a multiprocessor.
///
/// # Safety
///
/// As [`max_active_blocks`].
pub(crate) unsafe fn available_dynamic_shared_memory(
    target: *mut usize,
    function: CUfunction,
    blocks: i32,
    block_size: i32,
) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    let (function, kernel) = LaunchTarget::of(function)?.wire();
    let reply = call(&kdAvailableSharedMemory { function, kernel, blocks, blockSize: block_size })?;
    target.write(reply.size as usize);
    Ok(())
}

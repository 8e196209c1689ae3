//! Devices and contexts: flags, and answers made from attributes.
#![expect(unsafe_code, reason = "reads and writes arrays of C callers")]

use katydid_cuda_sys::{CUctxCreateParams, CUdevprop, CUexecAffinityParam, CUresult, device_attribute as id};

use crate::outcome::{INVALID_VALUE, Outcome, check};

/// The answer of `cuDriverGetVersion`: spec/cuda.api describes the driver of CUDA 13.0.
pub const DRIVER_VERSION: u32 = 13000;
/// The version that contexts of the first form of `cuCtxCreate` answer, as measured on a GPU's driver.
pub const FIRST_API_VERSION: u32 = 3010;
/// The version that contexts of all other forms answer, measured likewise.
pub const API_VERSION: u32 = 3020;
/// The valid flags of a context: scheduling in the low bits, the rest as in the header.
const CONTEXT_FLAGS: u32 = 0xff;
/// The highest preference between cache and shared memory.
const LAST_CACHE_CONFIG: u32 = 3;
/// `CU_EXEC_AFFINITY_TYPE_SM_COUNT`, the only kind.
const SM_COUNT: u32 = 0;
/// `CU_DEV_RESOURCE_TYPE_SM`, the only kind.
pub const RESOURCE_TYPE_SM: u32 = 1;
/// Number of kinds of `CUatomicOperation`.
pub const ATOMIC_OPERATION_COUNT: u32 = 13;
/// `CU_FUNCTION_LOADING_STATE_LOADED`: the code is on the device.
pub const FUNCTION_LOADING_STATE_LOADED: u32 = 1;

/// Refuses invalid flags of a context.
pub const fn check_context_flags(flags: u32) -> Outcome {
    check(flags & !CONTEXT_FLAGS == 0)
}

/// Checks a preference between cache and shared memory, of a context, a function or a kernel.
pub const fn check_cache_config(config: u32) -> Outcome {
    check(config <= LAST_CACHE_CONFIG)
}

/// Returns whether parameters of `cuCtxCreate_v4` ask for more than an ordinary context.
pub fn asks_for_more(params: &CUctxCreateParams) -> bool {
    params.numExecAffinityParams != 0 || !params.cigParams.is_null()
}

/// Checks the kind of a resource of devices and contexts.
///
/// # Errors
///
/// `ERROR_INVALID_RESOURCE_TYPE`.
pub const fn check_resource_type(kind: u32) -> Outcome {
    if kind == RESOURCE_TYPE_SM { Ok(()) } else { Err(CUresult::ERROR_INVALID_RESOURCE_TYPE) }
}

/// Answers `cuCtxGetExecAffinity` without partitions: all multiprocessors of the device, as kind and count.
///
/// # Errors
///
/// `ERROR_UNSUPPORTED_EXEC_AFFINITY` for another kind.
pub fn exec_affinity(kind: u32, multiprocessors: u32) -> Outcome<CUexecAffinityParam> {
    if kind != SM_COUNT {
        return Err(CUresult::ERROR_UNSUPPORTED_EXEC_AFFINITY);
    }
    let mut answer = CUexecAffinityParam::default();
    answer.0[..4].copy_from_slice(&SM_COUNT.to_le_bytes());
    answer.0[4..].copy_from_slice(&multiprocessors.to_le_bytes());
    Ok(answer)
}

/// Answers that a device has no atomics over the bus, as an H200 does for host memory. Answers before a wrong operation are
/// written. Refuses missing arrays and unknown operations.
///
/// # Safety
///
/// Both arrays are null or have `count` entries.
pub unsafe fn no_atomics(capabilities: *mut u32, operations: *const u32, count: u32) -> Outcome {
    check(!capabilities.is_null() && !operations.is_null() && count > 0)?;
    for index in 0..count as usize {
        // SAFETY: below `count`, by the contract.
        check(unsafe { operations.add(index).read_unaligned() } < ATOMIC_OPERATION_COUNT)?;
        // SAFETY: as above.
        unsafe { capabilities.add(index).write_unaligned(0) };
    }
    Ok(())
}

/// Checks the arguments of `cuFlushGPUDirectRDMAWrites`.
pub const fn check_flush(target: u32, scope: u32) -> Outcome {
    /// `CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER` and `_TO_ALL_DEVICES`.
    const FLUSH_SCOPES: [u32; 2] = [100, 200];
    check(target == 0 && (scope == FLUSH_SCOPES[0] || scope == FLUSH_SCOPES[1]))
}

/// Returns the answer of `cuDeviceGetProperties`, from the attributes.
pub fn properties(value: impl Fn(u32) -> i32) -> CUdevprop {
    CUdevprop {
        maxThreadsPerBlock: value(id::MAX_THREADS_PER_BLOCK),
        maxThreadsDim: [value(id::MAX_BLOCK_DIM_X), value(id::MAX_BLOCK_DIM_Y), value(id::MAX_BLOCK_DIM_Z)],
        maxGridSize: [value(id::MAX_GRID_DIM_X), value(id::MAX_GRID_DIM_Y), value(id::MAX_GRID_DIM_Z)],
        sharedMemPerBlock: value(id::MAX_SHARED_MEMORY_PER_BLOCK),
        totalConstantMemory: value(id::TOTAL_CONSTANT_MEMORY),
        SIMDWidth: value(id::WARP_SIZE),
        memPitch: value(id::MAX_PITCH),
        regsPerBlock: value(id::MAX_REGISTERS_PER_BLOCK),
        clockRate: value(id::CLOCK_RATE),
        textureAlign: value(id::TEXTURE_ALIGNMENT),
    }
}

/// Returns bytes of memory in the 32 bits of CUDA 2: larger sizes saturate.
pub fn total_in_32_bits(bytes: u64) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// Checks version and flags of `cuGetProcAddress`; returns whether they mean the thread's own default stream.
/// Refuses versions beyond the driver's and unknown flags.
pub const fn proc_address_flags(version: u32, flags: u64) -> Outcome<bool> {
    /// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`.
    const PER_THREAD_FLAG: u64 = 2;
    /// All flags together.
    const ALL_FLAGS: u64 = 3;
    if flags > ALL_FLAGS || version > DRIVER_VERSION { Err(INVALID_VALUE) } else { Ok(flags & PER_THREAD_FLAG != 0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_of_contexts_have_8_bits() {
        assert_eq!([0, 0xff, 0x100].map(check_context_flags), [Ok(()), Ok(()), Err(INVALID_VALUE)]);
        assert_eq!([0, 3, 4].map(check_cache_config), [Ok(()), Ok(()), Err(INVALID_VALUE)]);
        let params = CUctxCreateParams::default();
        assert!(!asks_for_more(&params) && asks_for_more(&CUctxCreateParams { numExecAffinityParams: 1, ..params }));
    }

    #[test]
    fn all_multiprocessors_are_told_with_their_kind() {
        assert_eq!(exec_affinity(0, 132).map(|told| told.0), Ok([0, 0, 0, 0, 132, 0, 0, 0]));
        assert_eq!(exec_affinity(1, 132).err(), Some(CUresult::ERROR_UNSUPPORTED_EXEC_AFFINITY));
        assert_eq!(check_resource_type(0), Err(CUresult::ERROR_INVALID_RESOURCE_TYPE));
    }

    #[test]
    fn there_are_13_atomic_operations() {
        let mut answers = [7_u32; 3];
        // SAFETY: three entries each, and null.
        unsafe {
            assert_eq!(no_atomics(answers.as_mut_ptr(), [0, 12, 13].as_ptr(), 3), Err(INVALID_VALUE));
            assert_eq!(no_atomics(answers.as_mut_ptr(), std::ptr::null(), 3), Err(INVALID_VALUE));
            assert_eq!(no_atomics(answers.as_mut_ptr(), [0].as_ptr(), 0), Err(INVALID_VALUE));
        }
        assert_eq!(answers, [0, 0, 7]);
    }

    #[test]
    fn flushes_reach_the_owner_or_all() {
        assert_eq!(
            [(0, 100), (0, 200), (0, 0), (1, 100)].map(|(target, scope)| check_flush(target, scope).is_ok()),
            [true, true, false, false]
        );
    }

    #[test]
    fn properties_are_attributes() {
        let answer = properties(|attribute| attribute.cast_signed());
        assert_eq!((answer.maxThreadsDim, answer.maxGridSize, answer.textureAlign), ([2, 3, 4], [5, 6, 7], 14));
        assert_eq!((total_in_32_bits(5), total_in_32_bits(1 << 40)), (5, u32::MAX));
    }

    #[test]
    fn symbols_are_of_versions_up_to_the_drivers() {
        assert_eq!(
            [(0, 0), (13000, 2), (13010, 0), (12000, 4)].map(|(version, flags)| proc_address_flags(version, flags)),
            [Ok(false), Ok(true), Err(INVALID_VALUE), Err(INVALID_VALUE)]
        );
    }
}

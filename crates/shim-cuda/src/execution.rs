//! What a context may ask of where it runs: nothing that a GPU without partitions could refuse.
#![expect(unsafe_code, reason = "writes pointers of C callers")]

use katydid_cuda_sys::{CUdevice, CUexecAffinityParam, CUresult, device_attribute};

use crate::border::out;
use crate::current;
use crate::session::shim;

/// `CU_EXEC_AFFINITY_TYPE_SM_COUNT`, the only kind.
const SM_COUNT: u32 = 0;
/// Kinds of `CUatomicOperation`.
const OPERATIONS: u32 = 13;

/// A device of the program.
fn check(device: CUdevice) -> Result<(), CUresult> {
    let known = usize::try_from(device).is_ok_and(|ordinal| shim().is_ok_and(|shim| ordinal < shim.devices.len()));
    if known { Ok(()) } else { Err(CUresult::ERROR_INVALID_DEVICE) }
}

/// Partitions of multiprocessors are a matter of NVIDIA's MPS, which no program has here.
///
/// # Safety
///
/// `supported` is null or writable.
pub(crate) unsafe fn affinity_support(supported: *mut i32, _kind: u32, device: CUdevice) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let supported = unsafe { out(supported) }?;
    check(device)?;
    supported.write(0);
    Ok(())
}

/// All multiprocessors of the device.
///
/// # Safety
///
/// `affinity` is null or writable.
pub(crate) unsafe fn affinity(affinity: *mut CUexecAffinityParam, kind: u32) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let affinity = unsafe { out(affinity) }?;
    let context = current::active()?;
    if kind != SM_COUNT {
        return Err(CUresult::ERROR_UNSUPPORTED_EXEC_AFFINITY);
    }
    let device = &shim()?.devices[context.device as usize];
    let count = device.value(device_attribute::MULTIPROCESSOR_COUNT).unsigned_abs();
    let mut told = CUexecAffinityParam::default();
    told.0[..4].copy_from_slice(&SM_COUNT.to_le_bytes());
    told.0[4..].copy_from_slice(&count.to_le_bytes());
    affinity.write(told);
    Ok(())
}

/// No atomics on the host's memory over the bus, as an H200 answers.
///
/// # Safety
///
/// Both arrays are null or have `count` entries.
pub(crate) unsafe fn host_atomics(
    capabilities: *mut u32,
    operations: *const u32,
    count: u32,
    device: CUdevice,
) -> Result<(), CUresult> {
    check(device)?;
    if capabilities.is_null() || operations.is_null() || count == 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    for index in 0..count as usize {
        // SAFETY: below `count`, by the contract.
        if unsafe { operations.add(index).read_unaligned() } >= OPERATIONS {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        // SAFETY: as above.
        unsafe { capabilities.add(index).write_unaligned(0) };
    }
    Ok(())
}

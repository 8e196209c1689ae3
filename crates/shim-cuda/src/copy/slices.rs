//! The functions for two- and three-dimensional copies.
#![expect(unsafe_code, reason = "reads and writes memory of the program")]

use katydid_cuda_sys::{CUDA_MEMCPY2D, CUDA_MEMCPY3D, CUDA_MEMCPY3D_PEER, CUresult, CUstream};
use katydid_driver_rules::copy::described;

use crate::copy::array_copy;
use crate::copy::linear::{CopyWait, among};
use crate::ffi::handle::object;
use crate::graph::{capture, operation};
use crate::launch::backpressure;
use crate::sync::stream;

/// # Safety
///
/// `copy` is null or readable; sides that are the program's own memory are valid for their rows.
pub(crate) unsafe fn two_dimensional(copy: *const CUDA_MEMCPY2D) -> Result<(), CUresult> {
    // SAFETY: handed on.
    unsafe { copy_rows(copy, CUstream::NULL, CopyWait::Yes) }
}

/// # Safety
///
/// As [`two_dimensional`].
pub(crate) unsafe fn two_dimensional_async(copy: *const CUDA_MEMCPY2D, stream: CUstream) -> Result<(), CUresult> {
    // SAFETY: handed on.
    unsafe { copy_rows(copy, stream, CopyWait::No) }
}

/// # Safety
///
/// As [`two_dimensional`].
pub(crate) unsafe fn three_dimensional(copy: *const CUDA_MEMCPY3D) -> Result<(), CUresult> {
    // SAFETY: handed on.
    unsafe { copy_slices(copy, CUstream::NULL, CopyWait::Yes) }
}

/// # Safety
///
/// As [`two_dimensional`].
pub(crate) unsafe fn three_dimensional_async(copy: *const CUDA_MEMCPY3D, stream: CUstream) -> Result<(), CUresult> {
    // SAFETY: handed on.
    unsafe { copy_slices(copy, stream, CopyWait::No) }
}

/// Reads a copy between contexts. Contexts add nothing to the addresses; wrong ones are refused all the same.
///
/// # Safety
///
/// As [`two_dimensional`].
unsafe fn of_peers(copy: *const CUDA_MEMCPY3D_PEER) -> Result<CUDA_MEMCPY3D, CUresult> {
    if copy.is_null() {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    // SAFETY: not null, so readable by the contract; both descriptors differ only in the names of reserved words.
    let (peer, mut plain) = unsafe { (copy.read_unaligned(), copy.cast::<CUDA_MEMCPY3D>().read_unaligned()) };
    for context in [peer.srcContext, peer.dstContext] {
        if !context.is_null() {
            object(context)?;
        }
    }
    (plain.reserved0, plain.reserved1) = (std::ptr::null_mut(), std::ptr::null_mut());
    Ok(plain)
}

/// # Safety
///
/// As [`two_dimensional`].
pub(crate) unsafe fn peers(copy: *const CUDA_MEMCPY3D_PEER) -> Result<(), CUresult> {
    // SAFETY: handed on.
    let plain = unsafe { of_peers(copy) }?;
    // SAFETY: `of_peers` refuses null, so readable by the contract.
    let peer = unsafe { copy.read_unaligned() };
    // SAFETY: handed on.
    among([peer.srcContext, peer.dstContext], || unsafe {
        copy_slices(&raw const plain, CUstream::NULL, CopyWait::Yes)
    })
}

/// # Safety
///
/// As [`two_dimensional`].
pub(crate) unsafe fn peers_async(copy: *const CUDA_MEMCPY3D_PEER, stream: CUstream) -> Result<(), CUresult> {
    // SAFETY: handed on.
    unsafe {
        let plain = of_peers(copy)?;
        stream::refuse_captured(stream)?;
        copy_slices(&raw const plain, stream, CopyWait::No)
    }
}

/// # Safety
///
/// As [`two_dimensional`].
unsafe fn copy_rows(copy: *const CUDA_MEMCPY2D, stream: CUstream, wait: CopyWait) -> Result<(), CUresult> {
    if copy.is_null() {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    // SAFETY: not null, so readable by the contract.
    let it = unsafe { copy.read_unaligned() };
    let copy = CUDA_MEMCPY3D::from(&it);
    // SAFETY: handed on.
    unsafe { copy_slices(&raw const copy, stream, wait) }
}

/// # Safety
///
/// As [`two_dimensional`].
unsafe fn copy_slices(copy: *const CUDA_MEMCPY3D, stream: CUstream, wait: CopyWait) -> Result<(), CUresult> {
    if copy.is_null() {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    // SAFETY: not null, so readable by the contract.
    let copy = unsafe { copy.read_unaligned() };
    let is_given =
        || -> Result<bool, CUresult> { Ok(capture::rows(stream, &copy)? || operation::rows(stream, &copy)?) };
    if !described(&copy).2.is_empty() && wait == CopyWait::No && is_given()? {
        return Ok(());
    }
    backpressure::take_slot(stream)?;
    // SAFETY: handed on.
    unsafe { array_copy::copy(&copy, stream::wire(stream)?, wait) }
}

//! The functions that copy bytes of the first row of an array.
#![expect(unsafe_code, reason = "reads and writes memory of the program")]

use std::ffi::c_void;

use katydid_cuda_sys::{CUDA_MEMCPY3D, CUarray, CUdeviceptr, CUresult, CUstream, memory_type};

use crate::copy::slices;

/// One end of a copy of one row, as a function names it.
enum Row {
    Array(CUarray, usize),
    Device(CUdeviceptr),
    Host(u64),
}

/// Copies bytes of the first row of an array; without a stream, in the default one.
///
/// # Safety
///
/// A side that is host memory is valid for `size` bytes.
unsafe fn row(to: &Row, from: &Row, size: usize, stream: Option<CUstream>) -> Result<(), CUresult> {
    let mut it = CUDA_MEMCPY3D { WidthInBytes: size, Height: 1, Depth: 1, ..CUDA_MEMCPY3D::default() };
    match *to {
        Row::Array(array, x) => (it.dstMemoryType, it.dstArray, it.dstXInBytes) = (memory_type::ARRAY, array, x),
        Row::Device(address) => (it.dstMemoryType, it.dstDevice) = (memory_type::DEVICE, address),
        Row::Host(address) => {
            let host = std::ptr::with_exposed_provenance_mut(address as usize);
            (it.dstMemoryType, it.dstHost) = (memory_type::HOST, host);
        }
    }
    match *from {
        Row::Array(array, x) => (it.srcMemoryType, it.srcArray, it.srcXInBytes) = (memory_type::ARRAY, array, x),
        Row::Device(address) => (it.srcMemoryType, it.srcDevice) = (memory_type::DEVICE, address),
        Row::Host(address) => {
            let host = std::ptr::with_exposed_provenance(address as usize);
            (it.srcMemoryType, it.srcHost) = (memory_type::HOST, host);
        }
    }
    // SAFETY: handed on.
    unsafe {
        match stream {
            Some(stream) => slices::three_dimensional_async(&raw const it, stream),
            None => slices::three_dimensional(&raw const it),
        }
    }
}

/// Makes an end of the program's memory.
fn host(pointer: *const c_void) -> Row {
    Row::Host(pointer.expose_provenance() as u64)
}

/// # Safety
///
/// Host pointers are valid for `size` bytes; this holds for every function below.
pub(crate) unsafe fn host_to_array(
    array: CUarray,
    offset: usize,
    source: *const c_void,
    size: usize,
) -> Result<(), CUresult> {
    // SAFETY: handed on.
    unsafe { row(&Row::Array(array, offset), &host(source), size, None) }
}

/// # Safety
///
/// As [`host_to_array`].
pub(crate) unsafe fn host_to_array_async(
    array: CUarray,
    offset: usize,
    source: *const c_void,
    size: usize,
    stream: CUstream,
) -> Result<(), CUresult> {
    // SAFETY: handed on.
    unsafe { row(&Row::Array(array, offset), &host(source), size, Some(stream)) }
}

/// # Safety
///
/// As [`host_to_array`].
pub(crate) unsafe fn array_to_host(
    target: *mut c_void,
    array: CUarray,
    offset: usize,
    size: usize,
) -> Result<(), CUresult> {
    // SAFETY: handed on.
    unsafe { row(&host(target), &Row::Array(array, offset), size, None) }
}

/// # Safety
///
/// As [`host_to_array`].
pub(crate) unsafe fn array_to_host_async(
    target: *mut c_void,
    array: CUarray,
    offset: usize,
    size: usize,
    stream: CUstream,
) -> Result<(), CUresult> {
    // SAFETY: handed on.
    unsafe { row(&host(target), &Row::Array(array, offset), size, Some(stream)) }
}

/// Returns before the copy is done.
pub(crate) fn device_to_array(array: CUarray, offset: usize, source: CUdeviceptr, size: usize) -> Result<(), CUresult> {
    // SAFETY: no side is the program's memory.
    unsafe { row(&Row::Array(array, offset), &Row::Device(source), size, None) }
}

/// Returns before the copy is done.
pub(crate) fn array_to_device(target: CUdeviceptr, array: CUarray, offset: usize, size: usize) -> Result<(), CUresult> {
    // SAFETY: no side is the program's memory.
    unsafe { row(&Row::Device(target), &Row::Array(array, offset), size, None) }
}

/// Returns before the copy is done.
pub(crate) fn array_to_array(
    target: CUarray,
    target_offset: usize,
    source: CUarray,
    source_offset: usize,
    size: usize,
) -> Result<(), CUresult> {
    let (to, from) = (Row::Array(target, target_offset), Row::Array(source, source_offset));
    // SAFETY: no side is the program's memory.
    unsafe { row(&to, &from, size, None) }
}

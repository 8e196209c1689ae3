//! Copies.

#![expect(unsafe_code, reason = "functions of the driver API take raw pointers")]

use std::ffi::c_void;

use katydid_cuda_sys::{CUDA_MEMCPY2D, CUcontext, CUstream};

use super::contexts::number;
use crate::border::{In, address, api};
use crate::copy::{Side, When, copy, peer};
use crate::current;
use crate::plane::copy_rows;
use crate::stream::{default_stream, resolve};

use Side::{Any, Device};

api! {
    fn cuMemcpy(to: u64, from: u64, size: usize) {
        copy(&default_stream()?, (Any, to), (Any, from), size, When::Now)?;
    }

    fn cuMemcpyAsync(to: u64, from: u64, size: usize, stream: CUstream) {
        copy(&resolve(stream)?, (Any, to), (Any, from), size, When::Later)?;
    }

    fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, size: usize) {
        copy(&default_stream()?, (Device, to), (Any, address(from)), size, When::Now)?;
    }

    fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, size: usize) {
        copy(&default_stream()?, (Any, address(to)), (Device, from), size, When::Now)?;
    }

    /// Does not wait, as the real driver does not: only streams can see when it happens.
    fn cuMemcpyDtoD_v2(to: u64, from: u64, size: usize) {
        copy(&default_stream()?, (Device, to), (Device, from), size, When::Later)?;
    }

    fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, size: usize, stream: CUstream) {
        copy(&resolve(stream)?, (Device, to), (Any, address(from)), size, When::Later)?;
    }

    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, size: usize, stream: CUstream) {
        copy(&resolve(stream)?, (Any, address(to)), (Device, from), size, When::Later)?;
    }

    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, size: usize, stream: CUstream) {
        copy(&resolve(stream)?, (Device, to), (Device, from), size, When::Later)?;
    }

    fn cuMemcpyPeer(to: u64, to_context: CUcontext, from: u64, from_context: CUcontext, size: usize) {
        let (target, source) = (current::named(number(to_context))?, current::named(number(from_context))?);
        peer(&default_stream()?, (&target, to), (&source, from), size, When::Later)?;
    }

    fn cuMemcpyPeerAsync(
        to: u64,
        to_context: CUcontext,
        from: u64,
        from_context: CUcontext,
        size: usize,
        stream: CUstream,
    ) {
        let (target, source) = (current::named(number(to_context))?, current::named(number(from_context))?);
        peer(&resolve(stream)?, (&target, to), (&source, from), size, When::Later)?;
    }

    fn cuMemcpy2D_v2(description: In<CUDA_MEMCPY2D>) {
        copy_rows(&default_stream()?, &description.0, When::Now)?;
    }

    fn cuMemcpy2DUnaligned_v2(description: In<CUDA_MEMCPY2D>) {
        copy_rows(&default_stream()?, &description.0, When::Now)?;
    }

    fn cuMemcpy2DAsync_v2(description: In<CUDA_MEMCPY2D>, stream: CUstream) {
        copy_rows(&resolve(stream)?, &description.0, When::Later)?;
    }
}

//! Copies. What each waits for:
//!
//! | source | target | synchronous form | asynchronous form |
//! |---|---|---|---|
//! | pageable | device | until it is done | until the source is read |
//! | device | pageable | until it is done | until it is done |
//! | device or page-locked | device | not (device), until it is done (host forms) | not |
//! | device | page-locked | until it is done | not |
//!
//! Sizes are bytes; nothing (0 bytes) succeeds whatever the addresses are.

#![expect(unsafe_code, reason = "functions of the driver API take raw pointers")]

use std::ffi::c_void;

use katydid_cuda_sys::{CUDA_MEMCPY2D, CUDA_MEMCPY3D, CUDA_MEMCPY3D_PEER, CUarray, CUcontext, CUresult, CUstream};

use crate::api::context::number;
use crate::context::{contexts, stack};
use crate::copy::linear::{CallMode, copy, peer};
use crate::copy::plane::copy_rows;
use crate::copy::side::CopySide;
use crate::ffi::{In, Outcome, address, api};
use crate::graphs::capture;
use crate::sync::streams::{default_stream, resolve};
use crate::texture::volume::{self, RowEnd, copy_row};

use CopySide::{Any, Device};

/// Converts a peer copy to a plain one: the addresses already tell the contexts. Wrong contexts are still refused.
fn of_peers(peer: &CUDA_MEMCPY3D_PEER) -> Outcome<CUDA_MEMCPY3D> {
    for handle in [peer.srcContext, peer.dstContext] {
        if !handle.is_null() {
            contexts::living(handle.address() as usize).ok_or(CUresult::ERROR_INVALID_CONTEXT)?;
        }
    }
    let it = peer;
    Ok(CUDA_MEMCPY3D {
        srcXInBytes: it.srcXInBytes,
        srcY: it.srcY,
        srcZ: it.srcZ,
        srcLOD: it.srcLOD,
        srcMemoryType: it.srcMemoryType,
        srcHost: it.srcHost,
        srcDevice: it.srcDevice,
        srcArray: it.srcArray,
        srcPitch: it.srcPitch,
        srcHeight: it.srcHeight,
        dstXInBytes: it.dstXInBytes,
        dstY: it.dstY,
        dstZ: it.dstZ,
        dstLOD: it.dstLOD,
        dstMemoryType: it.dstMemoryType,
        dstHost: it.dstHost,
        dstDevice: it.dstDevice,
        dstArray: it.dstArray,
        dstPitch: it.dstPitch,
        dstHeight: it.dstHeight,
        WidthInBytes: it.WidthInBytes,
        Height: it.Height,
        Depth: it.Depth,
        ..CUDA_MEMCPY3D::default()
    })
}

api! {
    /// Copies between any two sides; the addresses tell what they are.
    fn cuMemcpy(to: u64, from: u64, size: usize) {
        copy(&default_stream()?, (Any, to), (Any, from), size, CallMode::Blocking)?;
    }

    /// Copies between any two sides; the addresses tell what they are. Waits for pageable memory.
    fn cuMemcpyAsync(to: u64, from: u64, size: usize, stream: CUstream) {
        copy(&resolve(stream)?, (Any, to), (Any, from), size, CallMode::Asynchronous)?;
    }

    /// Returns when the bytes have arrived.
    fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, size: usize) {
        copy(&default_stream()?, (Device, to), (Any, address(from)), size, CallMode::Blocking)?;
    }

    /// Returns when the bytes have arrived.
    fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, size: usize) {
        copy(&default_stream()?, (Any, address(to)), (Device, from), size, CallMode::Blocking)?;
    }

    /// Returns before the copy is done, as in the real driver: only streams can see when it happens.
    fn cuMemcpyDtoD_v2(to: u64, from: u64, size: usize) {
        copy(&default_stream()?, (Device, to), (Device, from), size, CallMode::Asynchronous)?;
    }

    /// Buffers a small pageable source, and waits for a large one.
    fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, size: usize, stream: CUstream) {
        copy(&resolve(stream)?, (Device, to), (Any, address(from)), size, CallMode::Asynchronous)?;
    }

    /// Returns at once only for page-locked targets.
    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, size: usize, stream: CUstream) {
        copy(&resolve(stream)?, (Any, address(to)), (Device, from), size, CallMode::Asynchronous)?;
    }

    /// Returns before the copy is done.
    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, size: usize, stream: CUstream) {
        copy(&resolve(stream)?, (Device, to), (Device, from), size, CallMode::Asynchronous)?;
    }

    /// Returns before the copy is done, as in the real driver.
    fn cuMemcpyPeer(to: u64, to_context: CUcontext, from: u64, from_context: CUcontext, size: usize) {
        let (target, source) = (stack::named(number(to_context))?, stack::named(number(from_context))?);
        peer(&default_stream()?, (&target, to), (&source, from), size, CallMode::Asynchronous)?;
    }

    /// Each context reaches its own side; peer access need not be enabled.
    fn cuMemcpyPeerAsync(
        to: u64,
        to_context: CUcontext,
        from: u64,
        from_context: CUcontext,
        size: usize,
        stream: CUstream,
    ) {
        let (target, source) = (stack::named(number(to_context))?, stack::named(number(from_context))?);
        peer(&resolve(stream)?, (&target, to), (&source, from), size, CallMode::Asynchronous)?;
    }

    /// Copies bytes into the first row of an array from an offset on, as do all functions of this group.
    fn cuMemcpyHtoA_v2(array: CUarray, offset: usize, from: *const c_void, size: usize) {
        copy_row(&default_stream()?, &RowEnd::Array(array, offset), &RowEnd::Any(address(from)), size, CallMode::Blocking)?;
    }

    /// Returns when the bytes are there.
    fn cuMemcpyAtoH_v2(to: *mut c_void, array: CUarray, offset: usize, size: usize) {
        copy_row(&default_stream()?, &RowEnd::Any(address(to)), &RowEnd::Array(array, offset), size, CallMode::Blocking)?;
    }

    /// Copies within the device; the call does not wait.
    fn cuMemcpyDtoA_v2(array: CUarray, offset: usize, from: u64, size: usize) {
        copy_row(&default_stream()?, &RowEnd::Array(array, offset), &RowEnd::Device(from), size, CallMode::Asynchronous)?;
    }

    /// Copies within the device; the call does not wait.
    fn cuMemcpyAtoD_v2(to: u64, array: CUarray, offset: usize, size: usize) {
        copy_row(&default_stream()?, &RowEnd::Device(to), &RowEnd::Array(array, offset), size, CallMode::Asynchronous)?;
    }

    /// Copies within the device; the call does not wait.
    fn cuMemcpyAtoA_v2(to: CUarray, to_offset: usize, from: CUarray, from_offset: usize, size: usize) {
        copy_row(&default_stream()?, &RowEnd::Array(to, to_offset), &RowEnd::Array(from, from_offset), size, CallMode::Asynchronous)?;
    }

    /// Waits if the source is pageable memory.
    fn cuMemcpyHtoAAsync_v2(array: CUarray, offset: usize, from: *const c_void, size: usize, stream: CUstream) {
        copy_row(&resolve(stream)?, &RowEnd::Array(array, offset), &RowEnd::Any(address(from)), size, CallMode::Asynchronous)?;
    }

    /// Waits if the target is pageable memory.
    fn cuMemcpyAtoHAsync_v2(to: *mut c_void, array: CUarray, offset: usize, size: usize, stream: CUstream) {
        copy_row(&resolve(stream)?, &RowEnd::Any(address(to)), &RowEnd::Array(array, offset), size, CallMode::Asynchronous)?;
    }

    /// Copies between devices as within one: the addresses tell where the memory is.
    fn cuMemcpy3DPeer(description: In<CUDA_MEMCPY3D_PEER>) {
        volume::copy(&default_stream()?, &of_peers(&description.0)?, CallMode::Blocking)?;
    }

    /// Copies between devices as within one.
    fn cuMemcpy3DPeerAsync(description: In<CUDA_MEMCPY3D_PEER>, stream: CUstream) {
        volume::copy(&resolve(stream)?, &of_peers(&description.0)?, CallMode::Asynchronous)?;
    }

    /// Copies slices of rows. Either side may be an array.
    fn cuMemcpy3D_v2(description: In<CUDA_MEMCPY3D>) {
        volume::copy(&default_stream()?, &description.0, CallMode::Blocking)?;
    }

    /// Waits if a side is pageable memory.
    fn cuMemcpy3DAsync_v2(description: In<CUDA_MEMCPY3D>, stream: CUstream) {
        let stream = resolve(stream)?;
        if !capture::volume(&stream, &description.0)? {
            volume::copy(&stream, &description.0, CallMode::Asynchronous)?;
        }
    }

    /// Copies rows. Either side may be an array.
    fn cuMemcpy2D_v2(description: In<CUDA_MEMCPY2D>) {
        copy_rows(&default_stream()?, &description.0, CallMode::Blocking)?;
    }

    /// Copies rows as the plain form does, which needs no alignment either.
    fn cuMemcpy2DUnaligned_v2(description: In<CUDA_MEMCPY2D>) {
        copy_rows(&default_stream()?, &description.0, CallMode::Blocking)?;
    }

    /// Waits if a side is pageable memory.
    fn cuMemcpy2DAsync_v2(description: In<CUDA_MEMCPY2D>, stream: CUstream) {
        copy_rows(&resolve(stream)?, &description.0, CallMode::Asynchronous)?;
    }
}

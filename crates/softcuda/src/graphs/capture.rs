//! Operations of streams that become nodes under capture. Each returns whether it was captured.

#![expect(unsafe_code, reason = "packs parameters of C callers")]

use katydid_cuda_sys::{
    CUDA_MEMCPY2D, CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS, CUcontext, CUstreamBatchMemOpParams, memory_type,
};
use katydid_graph::{Batch, CaptureOutcome, Host, Launch, Params};

use super::of_process;
use crate::copy::side::CopySide;
use crate::ffi::Outcome;
use crate::sync::memory_word::Operation;
use crate::sync::stream::Stream;

fn is_captured(outcome: CaptureOutcome) -> bool {
    outcome == CaptureOutcome::Yes
}

/// The handle of a stream's context.
fn context(stream: &Stream) -> Outcome<CUcontext> {
    Ok(CUcontext(std::ptr::without_provenance_mut(stream.context()?.handle)))
}

/// Captures a launch. A refused launch invalidates the capture.
///
/// # Safety
///
/// The launch's parameters are as the driver API documents them for its function.
pub(crate) unsafe fn launch(stream: &Stream, launch: &Launch) -> Outcome<bool> {
    let make = || {
        let launch = Launch { context: stream.context()?.handle, ..launch.clone() };
        // SAFETY: handed on.
        unsafe { of_process().kernel_params(&launch) }
    };
    of_process().take_or_invalidate(stream.capture_stream(), make).map(is_captured)
}

/// Captures a copy of one row. The program's declaration of a side decides how the node names it.
pub(crate) fn copy(stream: &Stream, to: (CopySide, u64), from: (CopySide, u64), size: usize) -> Outcome<bool> {
    let unified = to.0 == CopySide::Any && from.0 == CopySide::Any;
    let kind = |side: CopySide| match side {
        CopySide::Device => memory_type::DEVICE,
        CopySide::Any if unified => memory_type::UNIFIED,
        CopySide::Any => memory_type::HOST,
    };
    let mut it = CUDA_MEMCPY3D { WidthInBytes: size, Height: 1, Depth: 1, ..CUDA_MEMCPY3D::default() };
    (it.srcMemoryType, it.dstMemoryType) = (kind(from.0), kind(to.0));
    match it.srcMemoryType {
        memory_type::HOST => it.srcHost = std::ptr::with_exposed_provenance(from.1 as usize),
        _ => it.srcDevice = from.1,
    }
    match it.dstMemoryType {
        memory_type::HOST => it.dstHost = std::ptr::with_exposed_provenance_mut(to.1 as usize),
        _ => it.dstDevice = to.1,
    }
    of_process().take(stream.capture_stream(), || of_process().copy_params(&it, context(stream)?)).map(is_captured)
}

/// Captures a copy of rows.
pub(crate) fn rows(stream: &Stream, it: &CUDA_MEMCPY2D) -> Outcome<bool> {
    let copy = CUDA_MEMCPY3D::from(it);
    of_process().take(stream.capture_stream(), || of_process().copy_params(&copy, context(stream)?)).map(is_captured)
}

/// Captures a copy of rows and slices. An empty copy makes no node.
pub(crate) fn volume(stream: &Stream, copy: &CUDA_MEMCPY3D) -> Outcome<bool> {
    if copy.WidthInBytes == 0 || copy.Height == 0 || copy.Depth == 0 {
        return Ok(false);
    }
    of_process().take(stream.capture_stream(), || of_process().copy_params(copy, context(stream)?)).map(is_captured)
}

/// Captures a memset (`cuMemsetD*Async`).
pub(crate) fn fill(stream: &Stream, fill: &CUDA_MEMSET_NODE_PARAMS) -> Outcome<bool> {
    of_process().take(stream.capture_stream(), || of_process().fill_params(fill, context(stream)?)).map(is_captured)
}

/// Captures a host function.
pub(crate) fn host(stream: &Stream, function: usize, data: usize) -> Outcome<bool> {
    of_process().take(stream.capture_stream(), || Ok(Params::Host(Host { function, data }))).map(is_captured)
}

/// Captures a batch of checked operations.
pub(crate) fn batch(stream: &Stream, list: Vec<CUstreamBatchMemOpParams>) -> Outcome<bool> {
    let make = || Ok(Params::Batch(Batch { operations: list.into(), flags: 0, context: stream.context()?.handle }));
    of_process().take(stream.capture_stream(), make).map(is_captured)
}

/// Captures an operation on a word.
pub(crate) fn word(stream: &Stream, operation: CUstreamBatchMemOpParams) -> Outcome<bool> {
    let make = || {
        let context = stream.context()?;
        Operation::of_batch(&context, &operation)?;
        Ok(Params::Batch(Batch { operations: vec![operation].into(), flags: 0, context: context.handle }))
    };
    of_process().take(stream.capture_stream(), make).map(is_captured)
}

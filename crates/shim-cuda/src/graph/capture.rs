//! Operations on streams that become nodes while their stream is captured: each returns whether it did.
#![expect(unsafe_code, reason = "packs parameters of C callers")]

use katydid_cuda_sys::{
    CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS, CUcontext, CUresult, CUstream, CUstreamBatchMemOpParams,
};
use katydid_driver_rules::copy::DeclaredMemory;
use katydid_graph::{Batch, CaptureOutcome, Host, Launch, Params};

use crate::copy::side;
use crate::graph::model::{self, of_process};
use crate::sync::stream;

/// Returns whether nothing is captured: most calls then check nothing more.
fn is_quiet() -> bool {
    of_process().is_quiet()
}

/// Makes a node of `make` for a captured stream's context. Returns whether the model took it.
fn take(stream: CUstream, make: impl FnOnce(CUcontext) -> Result<Params, CUresult>) -> Result<bool, CUresult> {
    let capture_stream = stream::capture_stream(stream)?;
    let context = CUcontext(std::ptr::with_exposed_provenance_mut(capture_stream.context));
    Ok(of_process().take(capture_stream, || make(context))? == CaptureOutcome::Yes)
}

/// Captures a launch; a refused one invalidates the capture.
///
/// # Safety
///
/// The launch's parameters are as the driver API documents them for its function.
pub(crate) unsafe fn launch(stream: CUstream, launch: impl FnOnce() -> Launch) -> Result<bool, CUresult> {
    if is_quiet() {
        return Ok(false);
    }
    let capture_stream = stream::capture_stream(stream)?;
    let make = || {
        let launch = Launch { context: capture_stream.context, ..launch() };
        // SAFETY: handed on.
        unsafe { of_process().kernel_params(&launch) }
    };
    Ok(of_process().take_or_invalidate(capture_stream, make)? == CaptureOutcome::Yes)
}

/// Captures a copy of one row. The program's names for the sides decide the node's.
pub(crate) fn copy(
    stream: CUstream,
    to: (DeclaredMemory, u64),
    from: (DeclaredMemory, u64),
    size: usize,
) -> Result<bool, CUresult> {
    rows(stream, &side::row(to, from, size))
}

/// Captures a copy of rows and slices; returns whether it became a node.
pub(crate) fn rows(stream: CUstream, copy: &CUDA_MEMCPY3D) -> Result<bool, CUresult> {
    if is_quiet() { Ok(false) } else { take(stream, |context| of_process().copy_params(copy, context)) }
}

/// Captures a fill; returns whether it became a node.
pub(crate) fn fill(stream: CUstream, fill: &CUDA_MEMSET_NODE_PARAMS) -> Result<bool, CUresult> {
    if is_quiet() { Ok(false) } else { take(stream, |context| of_process().fill_params(fill, context)) }
}

/// Captures a call of a function of the program.
pub(crate) fn host(stream: CUstream, function: usize, data: usize) -> Result<bool, CUresult> {
    if is_quiet() { Ok(false) } else { take(stream, |_| Ok(Params::Host(Host { function, data }))) }
}

/// Captures a checked operation on a word.
pub(crate) fn word(stream: CUstream, operation: CUstreamBatchMemOpParams) -> Result<bool, CUresult> {
    if is_quiet() {
        return Ok(false);
    }
    take(stream, |context| {
        Ok(Params::Batch(Batch { operations: vec![operation].into(), flags: 0, context: context.0.addr() }))
    })
}

/// Captures the checked operations of one batch as one node.
pub(crate) fn batch(stream: CUstream, operations: &[CUstreamBatchMemOpParams]) -> Result<bool, CUresult> {
    if is_quiet() {
        return Ok(false);
    }
    take(stream, |context| {
        Ok(Params::Batch(Batch { operations: operations.to_vec().into(), flags: 0, context: context.0.addr() }))
    })
}

/// Captures a stream-ordered allocation. Returns its address if it became a node. Outside of captures such a call is unsafe.
pub(crate) fn allocate(stream: CUstream, size: usize) -> Result<Option<u64>, CUresult> {
    if is_quiet() {
        return Ok(None);
    }
    let device = stream::context_of(stream)?.device as i32;
    let address = of_process().take_alloc(stream::capture_stream(stream)?, size, device)?;
    if address.is_none() {
        model::forbid()?;
    }
    Ok(address)
}

/// Captures a stream-ordered free. Returns whether it became a node, or freed memory of a graph.
pub(crate) fn free(stream: CUstream, address: u64) -> Result<bool, CUresult> {
    if !is_quiet() {
        if of_process().take_free(stream::capture_stream(stream)?, address)? == CaptureOutcome::Yes {
            return Ok(true);
        }
        model::forbid()?;
    }
    of_process().free(address)
}

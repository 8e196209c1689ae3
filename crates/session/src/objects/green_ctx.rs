//! Green contexts.

use katydid_cuda_sys::CUgreenCtx;

/// A context with a part of its device's multiprocessors.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GreenContext {
    /// Handle that `cuGreenCtxCreate` returned.
    pub(crate) handle: CUgreenCtx,
    /// Wire id of the primary context, which owns what is made in this one, except streams.
    pub(crate) owner: u32,
}

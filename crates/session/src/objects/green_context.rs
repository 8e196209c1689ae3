//! Green contexts.

use katydid_cuda_sys::CUgreenCtx;

/// A context with a part of its device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GreenContext {
    /// Handle that `cuGreenCtxCreate` returned.
    pub(crate) handle: CUgreenCtx,
    /// Wire id of the primary context, to which belongs what is made in this one, streams apart.
    pub(crate) owner: u32,
}

//! Looks up the objects that nodes name.

use std::sync::Arc;

use katydid_cuda_sys::{CUDA_MEMSET_NODE_PARAMS, CUlaunchAttribute, CUresult};
use katydid_graph::Attributes;

use crate::code::launch::LaunchGeometry;
use crate::context::contexts;
use crate::context::state::Context;
use crate::copy::transfer::AccessRange;
use crate::ffi::Outcome;
use crate::memory::space::Access;
use crate::sync::stream::LiveContext;

/// A kernel node's code and launch geometry.
pub(super) struct PreparedKernel {
    pub(super) kernel: Arc<katydid_ptx_exec::Kernel>,
    pub(super) shape: LaunchGeometry,
}

/// Returns the live context behind a handle that was checked before.
pub(super) fn context_of(handle: usize) -> Outcome<Arc<LiveContext>> {
    contexts::living(handle).ok_or(CUresult::ERROR_CONTEXT_IS_DESTROYED)
}

/// Converts the attributes of a node to those of a launch.
pub(super) fn of_launch(attributes: &Attributes) -> Vec<CUlaunchAttribute> {
    let attribute_of =
        |(id, value): (&u32, &[u64; 8])| CUlaunchAttribute { id: *id, value: *value, ..Default::default() };
    attributes.iter().map(attribute_of).collect()
}

/// Returns the range of a fill.
pub(super) fn fill_span(context: &Context, fill: &CUDA_MEMSET_NODE_PARAMS) -> Outcome<AccessRange> {
    AccessRange::reached(context, fill.dst, fill_size(fill)?, Access::ReadWrite)
}

/// Returns the bytes of a fill, from the first to the last.
pub(super) fn fill_size(fill: &CUDA_MEMSET_NODE_PARAMS) -> Outcome<u64> {
    let element = u64::from(fill.elementSize);
    let row = (fill.width as u64).checked_mul(element);
    let skipped = (fill.height as u64).saturating_sub(1).checked_mul(fill.pitch as u64);
    let size = row.zip(skipped).and_then(|(row, skipped)| skipped.checked_add(row));
    if !fill.dst.is_multiple_of(element.max(1)) {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    size.ok_or(CUresult::ERROR_INVALID_VALUE)
}

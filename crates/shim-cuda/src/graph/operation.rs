//! Copies and fills that only the program can do, in a stream that may have calls of the program's functions queued.
//!
//! The driver reads and writes pinned memory when the stream reaches the copy, after the call has returned. Without this
//! module the calling thread waits for that point and copies itself; but the function may be waiting for that thread. So
//! such work is queued in the stream as a graph of its own, in which the upcall thread does the program's part.

use katydid_cuda_sys::{CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS, CUcontext, CUresult, CUstream};
use katydid_driver_rules::copy::DeclaredMemory;
use katydid_graph::Params;

use crate::context::stack;
use crate::copy::pattern::CheckedMemset;
use crate::copy::rows::{self, CopySides};
use crate::copy::side::{self, CopySide};
use crate::graph::model::of_process;
use crate::memory::pinned;
use crate::sync::{stream, wait};

/// Largest such copy, in bytes: the worker holds pinned memory for all of it meanwhile.
const MAX_COPY_BYTES: u64 = 256 << 20;

/// Queues a copy of one row as a graph; returns whether it did.
pub(crate) fn copy(
    stream: CUstream,
    to: (DeclaredMemory, u64),
    from: (DeclaredMemory, u64),
    size: usize,
) -> Result<bool, CUresult> {
    if pinned::may_be_behind_functions()? { give_rows(stream, &side::row(to, from, size)) } else { Ok(false) }
}

/// Queues a copy of rows and slices as a graph; returns whether it did.
pub(crate) fn rows(stream: CUstream, copy: &CUDA_MEMCPY3D) -> Result<bool, CUresult> {
    if pinned::may_be_behind_functions()? { give_rows(stream, copy) } else { Ok(false) }
}

/// Queues a fill as a graph; returns whether it did.
pub(crate) fn fill(stream: CUstream, fill: &CUDA_MEMSET_NODE_PARAMS) -> Result<bool, CUresult> {
    if !pinned::may_be_behind_functions()? || kind_of(side::of_fill(&CheckedMemset(*fill))?)? != SideKind::Pinned {
        return Ok(false);
    }
    give(stream, |context| of_process().fill_params(fill, context))
}

fn give_rows(stream: CUstream, copy: &CUDA_MEMCPY3D) -> Result<bool, CUresult> {
    // Graphs do not copy arrays.
    if rows::has_array(copy) {
        return Ok(false);
    }
    let CopySides { target, source, .. } = rows::sides(copy)?;
    let kinds = [kind_of(target.side)?, kind_of(source.side)?];
    let size = copy.WidthInBytes as u64 * copy.Height as u64 * copy.Depth as u64;
    if !kinds.contains(&SideKind::Pinned) || size > MAX_COPY_BYTES {
        return Ok(false);
    }
    let is_given = give(stream, |context| of_process().copy_params(copy, context))?;
    // Wait in order all the same: waiting alone does not put the stream in order with others.
    if is_given && kinds.contains(&SideKind::Pageable) {
        wait::synchronize_in(stream::asked_in(stream)?, stream::wire(stream)?)?
    }
    Ok(is_given)
}

/// The kind of memory of a side.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SideKind {
    /// Pinned, and only the program reaches it.
    Pinned,
    /// The program's own: the driver does not return before it has read or written that, whatever the other side is. The
    /// program may use it at once, and so may its next copy.
    Pageable,
    /// The worker reaches it.
    Far,
}

fn kind_of(side: CopySide) -> Result<SideKind, CUresult> {
    match side {
        CopySide::Own(address) if pinned::is_pinned(address)? => Ok(SideKind::Pinned),
        CopySide::Own(_) => Ok(SideKind::Pageable),
        CopySide::Gpu(_) | CopySide::Shared(_) => Ok(SideKind::Far),
    }
}

/// Queues the work in the stream, in that one's context, unless the worker lacks memory for it: then the program may wait
/// instead.
fn give(stream: CUstream, make: impl FnOnce(CUcontext) -> Result<Params, CUresult>) -> Result<bool, CUresult> {
    let context = stream::context_of(stream)?;
    let params = make(context.handle())?;
    match stack::within(context, || of_process().run_once(params, stream)) {
        Err(CUresult::ERROR_OUT_OF_MEMORY) => Ok(false),
        result => result.map(|()| true),
    }
}

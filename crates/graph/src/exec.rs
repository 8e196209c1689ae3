//! Executable graphs: the instantiated plan, and the changes to it since.

use std::collections::BTreeMap;
use std::sync::Arc;

use katydid_cuda_sys::CUgraphExec;

use crate::handles::{GraphId, handle, number};
use crate::plan::Plan;

/// The first handle of executable graphs.
const FIRST_EXEC_HANDLE: usize = 0x0045_0000_0000_0000;

/// An executable graph (`CUgraphExec`).
#[derive(Debug)]
pub(crate) struct Exec {
    /// Steps that a launch runs.
    pub(crate) plan: Arc<Plan>,
    /// The graph that it was made from.
    pub(crate) graph: GraphId,
    /// The flags of its instantiation, without those that only concerned that.
    pub(crate) flags: u64,
    /// References to user objects.
    pub(crate) objects: BTreeMap<u32, u32>,
    /// Whether some step allocates or frees, which each launch has to check. Changes keep the types of steps.
    pub(crate) has_memory: bool,
}

/// Returns the handle of an executable graph.
pub(crate) fn exec_handle(id: u32) -> CUgraphExec {
    CUgraphExec(handle(id, FIRST_EXEC_HANDLE))
}

/// Returns the number behind the handle of an executable graph.
pub(crate) fn exec_number(exec: CUgraphExec) -> Option<u32> {
    number(exec.0.addr(), FIRST_EXEC_HANDLE)
}

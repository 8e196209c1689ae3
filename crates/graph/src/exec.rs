//! Executable graphs: the instantiated plan, and the changes to it since.

use std::collections::BTreeMap;
use std::sync::Arc;

use katydid_cuda_sys::CUgraphExec;

use crate::handles::{GraphId, handle, number};
use crate::plan::Plan;

/// Their handles begin here.
const FIRST_EXEC_HANDLE: usize = 0x0045_0000_0000_0000;

/// An executable graph (`CUgraphExec`).
#[derive(Debug)]
pub(crate) struct Exec {
    /// Steps that a launch runs.
    pub(crate) plan: Arc<Plan>,
    /// The graph it was made of.
    pub(crate) graph: GraphId,
    /// As given at its instantiation, without what only concerned that.
    pub(crate) flags: u64,
    /// References to user objects.
    pub(crate) objects: BTreeMap<u32, u32>,
    /// Some step allocates or frees, which each launch has to look at. Changes leave kinds of steps as they are.
    pub(crate) has_memory: bool,
}

/// The handle of an executable graph.
pub(crate) fn exec_handle(id: u32) -> CUgraphExec {
    CUgraphExec(handle(id, FIRST_EXEC_HANDLE))
}

/// The number behind the handle of an executable graph.
pub(crate) fn exec_number(exec: CUgraphExec) -> Option<u32> {
    number(exec.0.addr(), FIRST_EXEC_HANDLE)
}

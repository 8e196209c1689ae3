//! Executable graphs of a session, and the memory that the driver reads while they run.

#![expect(unsafe_code, reason = "calls the driver")]

use std::collections::{BTreeSet, HashMap};
use std::ffi::c_void;
use std::sync::Arc;

use katydid_cuda_sys::{CUevent, CUgraph, CUgraphExec, CUgraphNode, CUresult};
use katydid_driver::Driver;

use crate::calls::fault::Fault;
use crate::calls::session_shared::CudaSessionShared;

/// The driver's nodes for one step.
#[derive(Debug, Clone, Copy)]
pub(super) enum BuiltStep {
    /// The step is one node.
    One(CUgraphNode),
    /// The copy, and the host function for the program's part.
    Staged { copy: CUgraphNode, host: CUgraphNode },
    /// The step cannot be changed.
    Fixed,
}

/// The data that the driver passes back whenever a step's host function is due.
pub(super) struct RepeatedUpcall {
    shared: Arc<CudaSessionShared>,
    /// The function's token; 0 if the step is disabled.
    token: u64,
}

/// Called by the driver's thread; the graph's branch stalls until the program has run the function.
pub(super) extern "C" fn run(data: *mut c_void) {
    // SAFETY: `GraphMemory` holds the box until the driver is done with every launch of the graph.
    let repeated = unsafe { &*data.cast::<RepeatedUpcall>() };
    if repeated.token != 0 {
        repeated.shared.upcalls.run(repeated.token, 0);
    }
}

/// Memory that the driver reads while a graph runs, and the events that tell when it no longer does.
#[derive(Default)]
pub(super) struct GraphMemory {
    #[expect(clippy::vec_box, reason = "the driver has their addresses")]
    functions: Vec<Box<RepeatedUpcall>>,
    /// Tokens of staging blocks, which the session frees.
    pub(super) staging_blocks: Vec<u64>,
    /// One for each context that the graph was launched in.
    pub(super) ends: Vec<LaunchEnd>,
    /// Whether a launch could not record its event, so that its end is unknown.
    pub(super) is_endless: bool,
}

/// The event recorded after each launch in a context.
pub(super) struct LaunchEnd {
    pub(super) event: CUevent,
    /// The program's wire id of the context.
    pub(super) context: u32,
}

impl GraphMemory {
    /// Makes a host function for the driver; returns its data.
    pub(super) fn function(&mut self, shared: &Arc<CudaSessionShared>, token: u64) -> *mut c_void {
        let boxed = Box::new(RepeatedUpcall { shared: Arc::clone(shared), token });
        let data = (&raw const *boxed).cast_mut().cast();
        self.functions.push(boxed);
        data
    }

    pub(super) fn is_empty(&self) -> bool {
        self.functions.is_empty() && self.staging_blocks.is_empty()
    }

    /// Returns whether a launch may still run. Completed events are destroyed.
    pub(super) fn is_needed(&mut self, driver: &Driver) -> bool {
        self.ends.retain(|end| {
            // SAFETY: the event is the worker's own, and its context lives.
            let is_over = unsafe { driver.cuEventQuery(end.event) } == CUresult::SUCCESS;
            if is_over {
                // SAFETY: as above; it is forgotten here.
                let _ = unsafe { driver.cuEventDestroy_v2(end.event) };
            }
            !is_over
        });
        self.is_endless || !self.ends.is_empty()
    }
}

/// An executable graph (`CUgraphExec`) and what its launches need.
pub(crate) struct Exec {
    pub(crate) handle: CUgraphExec,
    /// The graph that it was made from; null if that is a draft.
    pub(super) template: CUgraph,
    /// The nodes of each step, and whether it is enabled, by step number.
    pub(super) steps: Vec<(BuiltStep, bool)>,
    /// Wire ids of the contexts that its steps run in.
    pub(super) contexts: BTreeSet<u32>,
    /// One of them has ended: NVIDIA's driver hangs in a call with such a graph (H200, driver 580.159.04).
    pub(super) is_orphan: bool,
    pub(super) keep: GraphMemory,
}

/// All executable graphs of a session.
#[derive(Default)]
pub(crate) struct Graphs {
    pub(super) execs: HashMap<u32, Exec>,
    /// In a rebuilt session, graphs that take the memory of executable graphs that are made later than the program made
    /// them, or that it could no longer launch.
    pub(super) sketches: HashMap<u32, Exec>,
    /// Driver graphs with conditional handles, by the number of the program's graph.
    pub(super) drafts: HashMap<u32, CUgraph>,
    /// Memory of ended graphs that running launches may still need.
    pub(super) retired: Vec<GraphMemory>,
}

impl Graphs {
    /// Returns an executable graph.
    ///
    /// # Errors
    ///
    /// `CUDA_ERROR_INVALID_VALUE` for one that does not exist, `CUDA_ERROR_CONTEXT_IS_DESTROYED` for one that may only be
    /// destroyed.
    pub(crate) fn exec(&self, id: u32) -> Result<&Exec, Fault> {
        let exec = self.execs.get(&id).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        if exec.is_orphan { Err(CUresult::ERROR_CONTEXT_IS_DESTROYED.into()) } else { Ok(exec) }
    }

    pub(super) fn exec_mut(&mut self, id: u32) -> Result<&mut Exec, Fault> {
        self.execs.get_mut(&id).ok_or_else(|| CUresult::ERROR_INVALID_VALUE.into())
    }

    /// Forgets a context: launches in it are over, and the events that tell so are gone as well.
    pub(crate) fn end_context(&mut self, context: u32) {
        let all = self.execs.values_mut().chain(self.sketches.values_mut());
        all.for_each(|exec| exec.is_orphan |= exec.contexts.contains(&context));
        let graph_memories = self.execs.values_mut().map(|exec| &mut exec.keep).chain(&mut self.retired);
        graph_memories.for_each(|keep| keep.ends.retain(|end| end.context != context));
    }
}

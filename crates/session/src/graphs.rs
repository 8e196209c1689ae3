//! Executable graphs of a session, by the program's numbers.
//!
//! A graph comes as a description and is built here with the driver's own nodes, so that the driver runs it like any other.
//! A node that copies between the GPU and memory that only the program reaches becomes two: the copy, from or to the
//! worker's memory (a staging block), and a host function in which the program fills or empties that.

#![expect(unsafe_code, reason = "calls the driver")]

mod build;
mod exec;
mod staging;

use std::sync::Arc;

use katydid_cuda_sys::{CUevent, CUgraph, CUgraphNode, CUresult, CUstream, event_flags};
use katydid_wire::facts::{GraphFacts, StepFacts};
use katydid_wire::frame::FrameHead;

use crate::calls::fault::Fault;
use crate::device::ask::ask;
use crate::state::Session;

use build::{Builder, GraphPurpose, change};
pub(crate) use exec::Graphs;
use exec::{Exec, LaunchEnd};
pub(crate) use staging::StagingBlocks;

/// Most executable graphs, and graphs with conditional handles, that a session may have.
const MAX_GRAPHS: usize = 1 << 20;

impl Session {
    /// Returns the driver graph that holds the conditional handles of a graph of the program, and makes it if needed.
    pub(crate) fn draft(&mut self, graph: u32) -> Result<CUgraph, Fault> {
        if let Some(draft) = self.graphs.drafts.get(&graph) {
            return Ok(*draft);
        }
        if self.graphs.drafts.len() >= MAX_GRAPHS {
            return Err(CUresult::ERROR_OUT_OF_MEMORY.into());
        }
        // SAFETY: the output is a local.
        let draft = ask(|out| unsafe { self.driver().cuGraphCreate(out, 0) })?;
        self.graphs.drafts.insert(graph, draft);
        Ok(draft)
    }

    /// Destroys the draft of a graph that the program destroyed.
    pub(crate) fn forget_draft(&mut self, graph: u32) -> Result<CUresult, Fault> {
        let draft = self.graphs.drafts.remove(&graph);
        // SAFETY: the driver made it, and no code names it any more.
        Ok(draft.map_or(CUresult::SUCCESS, |draft| unsafe { self.driver().cuGraphDestroy(draft) }))
    }

    /// Makes an empty driver graph, which its user owns.
    fn new_graph(&self) -> Result<(CUgraph, bool), Fault> {
        // SAFETY: the output is a local.
        Ok((ask(|out| unsafe { self.driver().cuGraphCreate(out, 0) })?, true))
    }

    /// Returns the driver graph to build in: an empty one, or the draft, emptied.
    fn blank(&mut self, graph: u32) -> Result<(CUgraph, bool), Fault> {
        let Some(draft) = self.graphs.drafts.get(&graph).copied() else {
            return self.new_graph();
        };
        let mut count = 0;
        // SAFETY: without a list the driver only counts.
        unsafe { self.driver().cuGraphGetNodes(draft, std::ptr::null_mut(), &raw mut count) }.ok()?;
        // The driver refuses a list of length 0.
        if count == 0 {
            return Ok((draft, false));
        }
        let mut nodes = vec![CUgraphNode::NULL; count];
        // SAFETY: the list has as many entries as `count` says.
        unsafe { self.driver().cuGraphGetNodes(draft, nodes.as_mut_ptr(), &raw mut count) }.ok()?;
        for node in nodes {
            // SAFETY: the driver has just returned this node.
            unsafe { self.driver().cuGraphDestroyNode(node) }.ok()?;
        }
        Ok((draft, false))
    }

    /// Builds and instantiates a graph.
    pub(crate) fn instantiate_graph(
        &mut self,
        head: &FrameHead,
        (id, graph): (u32, u32),
        facts: &GraphFacts,
        flags: u64,
    ) -> Result<(), Fault> {
        self.sweep_graphs();
        if self.graphs.execs.len() >= MAX_GRAPHS {
            return Err(CUresult::ERROR_OUT_OF_MEMORY.into());
        }
        let blank = self.blank(graph)?;
        let exec = self.build_graph(head, blank, facts, flags, GraphPurpose::Launches)?;
        self.graphs.execs.insert(id, exec);
        Ok(())
    }

    /// Has the driver allocate the memory of an executable graph at its first place: the driver puts memory for the first
    /// graphs between that of modules, and keeps it (driver 580.159.04; empty steps need none). Steps that cannot be made
    /// become empty ones.
    ///
    /// # Errors
    ///
    /// The driver's code; nothing has changed then.
    pub(crate) fn sketch_graph(&mut self, head: &FrameHead, id: u32, facts: &GraphFacts) -> Result<(), Fault> {
        if self.graphs.sketches.len() >= MAX_GRAPHS {
            return Err(CUresult::ERROR_OUT_OF_MEMORY.into());
        }
        let blank = self.new_graph()?;
        let sketch = self.build_graph(head, blank, facts, 0, GraphPurpose::Preallocation)?;
        self.end_sketch(id);
        self.graphs.sketches.insert(id, sketch);
        Ok(())
    }

    /// Builds a graph in an empty one and instantiates it. On failure, destroys the graph if it is owned.
    fn build_graph(
        &mut self,
        head: &FrameHead,
        (template, owned): (CUgraph, bool),
        facts: &GraphFacts,
        flags: u64,
        purpose: GraphPurpose,
    ) -> Result<Exec, Fault> {
        let mut builder = Builder::new(self, head, purpose);
        let built = builder.graph(template, facts);
        let (steps, contexts, keep) = (builder.steps, builder.contexts, builder.keep);
        // SAFETY: handles are the driver's own; the output is a local.
        let result = built
            .and_then(|_| Ok(ask(|out| unsafe { self.driver().cuGraphInstantiateWithFlags(out, template, flags) })?));
        let handle = match result {
            Ok(handle) => handle,
            Err(fault) => {
                if owned {
                    // SAFETY: made for this, and named by no other code.
                    let _ = unsafe { self.driver().cuGraphDestroy(template) };
                }
                keep.staging_blocks.iter().for_each(|token| self.shared.staging_blocks.forget(*token));
                return Err(fault);
            }
        };
        let template = if owned { template } else { CUgraph::NULL };
        Ok(Exec { handle, template, steps, contexts, is_orphan: false, keep })
    }

    /// Ends a sketch, whose memory the graph itself then takes; false without one.
    pub(crate) fn end_sketch(&mut self, id: u32) -> bool {
        let sketch = self.graphs.sketches.remove(&id);
        sketch.map(|sketch| self.end(sketch)).is_some()
    }

    /// Changes one step of an executable graph.
    pub(crate) fn change_graph(
        &mut self,
        head: &FrameHead,
        id: u32,
        number: usize,
        step: &StepFacts,
    ) -> Result<(), Fault> {
        self.graphs.exec(id)?;
        let mut exec = self.graphs.execs.remove(&id).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        let changed = change(self, head, &mut exec, number, step);
        self.graphs.execs.insert(id, exec);
        changed
    }

    /// Launches an executable graph in a stream of a context.
    pub(crate) fn launch_graph(&mut self, id: u32, stream: CUstream, context: u32) -> Result<CUresult, Fault> {
        let exec = self.graphs.exec(id)?;
        let (handle, keeps) = (exec.handle, !exec.keep.is_empty());
        let end = keeps.then(|| self.end_of(id, context)).transpose()?;
        // SAFETY: handles are the driver's own.
        let launched = unsafe { self.driver().cuGraphLaunch(handle, stream) };
        if let Some(event) = end.filter(|_| launched == CUresult::SUCCESS) {
            // SAFETY: as above.
            let recorded = unsafe { self.driver().cuEventRecord(event, stream) };
            self.graphs.exec_mut(id)?.keep.is_endless |= recorded != CUresult::SUCCESS;
        }
        Ok(launched)
    }

    /// Returns the event for launches of a graph in a context: events of other contexts cannot be recorded there.
    fn end_of(&mut self, id: u32, context: u32) -> Result<CUevent, Fault> {
        if let Some(end) = self.graphs.exec(id)?.keep.ends.iter().find(|end| end.context == context) {
            return Ok(end.event);
        }
        let flags = event_flags::DISABLE_TIMING;
        // SAFETY: the output is a local.
        let event = self.make_in(context, |shared| ask(|out| unsafe { shared.driver.cuEventCreate(out, flags) }))?;
        self.graphs.exec_mut(id)?.keep.ends.push(LaunchEnd { event, context });
        Ok(event)
    }

    /// Ends an executable graph, and keeps what running launches still need. If one of its contexts has ended, the driver
    /// keeps the rest of it.
    pub(crate) fn destroy_graph(&mut self, id: u32) -> Result<CUresult, Fault> {
        let Some(exec) = self.graphs.execs.remove(&id) else {
            let is_sketch = self.end_sketch(id);
            return is_sketch.then_some(CUresult::SUCCESS).ok_or_else(|| CUresult::ERROR_INVALID_VALUE.into());
        };
        let status = self.end(exec);
        self.sweep_graphs();
        Ok(status)
    }

    fn end(&mut self, exec: Exec) -> CUresult {
        let status = match exec.is_orphan {
            true => CUresult::SUCCESS,
            // SAFETY: the driver's own handles, which no code names any more.
            false => unsafe { self.driver().cuGraphExecDestroy(exec.handle) },
        };
        if !exec.template.is_null() {
            // SAFETY: as above.
            let _ = unsafe { self.driver().cuGraphDestroy(exec.template) };
        }
        self.graphs.retired.push(exec.keep);
        status
    }

    /// Frees memory of ended graphs that no launch needs any more.
    pub(crate) fn sweep_graphs(&mut self) {
        let shared = Arc::clone(&self.shared);
        self.graphs.retired.retain_mut(|keep| {
            let is_needed = keep.is_needed(&shared.driver);
            if !is_needed {
                keep.staging_blocks.iter().for_each(|token| shared.staging_blocks.forget(*token));
            }
            is_needed
        });
    }
}

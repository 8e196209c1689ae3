//! Builds the driver's nodes from a description, and changes them in an executable graph.
//!
//! Every address in a description is checked like those of copies and fills ([`crate::memory::address_check`]). Graphs
//! inside steps are built into the same driver graph, between two empty nodes. Only bodies of conditional nodes are separate
//! graphs, because the driver makes them.

#![expect(unsafe_code, reason = "calls the driver")]
#![expect(non_snake_case, reason = "fields of the driver's structures keep the vendor's names")]

use std::collections::BTreeSet;
use std::ffi::c_void;
use std::sync::Arc;

use katydid_cuda_sys::{
    CUDA_BATCH_MEM_OP_NODE_PARAMS, CUDA_CONDITIONAL_NODE_PARAMS, CUDA_HOST_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS,
    CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS, CUcontext, CUevent, CUfunction, CUgraph, CUgraphEdgeData, CUgraphNode,
    CUgraphNodeParams, CUkernel, CUkernelNodeAttrValue, CUresult, CUstreamBatchMemOpParams, Pod as _, launch_attribute,
    launch_param, memory_type, node_type,
};
use katydid_driver::Driver;
use katydid_wire::facts::{GraphFacts, ParameterFacts, StepFacts, StepWork};
use katydid_wire::frame::FrameHead;

use super::exec::{BuiltStep, Exec, GraphMemory, run};
use crate::calls::fault::Fault;
use crate::device::ask::ask;
use crate::device::gather;
use crate::state::Session;

/// First and last node of a step.
type StepNodes = (CUgraphNode, CUgraphNode);

/// The purpose of a built graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GraphPurpose {
    /// The program launches it.
    Launches,
    /// No thread launches it: the driver only allocates an executable graph's memory early. Steps that cannot be made become
    /// empty.
    Preallocation,
}

/// Builds a driver graph from the steps of a message.
pub(super) struct Builder<'a> {
    pub(crate) session: &'a mut Session,
    pub(crate) head: &'a FrameHead,
    /// Node of each step, by step number, and whether it is enabled.
    pub(crate) steps: Vec<(BuiltStep, bool)>,
    /// Wire ids of the contexts that steps run in.
    pub(crate) contexts: BTreeSet<u32>,
    pub(crate) keep: GraphMemory,
    /// Inside a conditional node, where the driver allows no host functions.
    in_body: bool,
    purpose: GraphPurpose,
}

/// The parameter list for packed parameters, and the data that it points to.
struct PackedArguments<'a> {
    size: usize,
    params: &'a [u8],
}

impl PackedArguments<'_> {
    fn list(&mut self) -> [*mut c_void; 5] {
        [
            std::ptr::without_provenance_mut(launch_param::BUFFER_POINTER as usize),
            self.params.as_ptr().cast_mut().cast(),
            std::ptr::without_provenance_mut(launch_param::BUFFER_SIZE as usize),
            (&raw mut self.size).cast(),
            std::ptr::without_provenance_mut(launch_param::END as usize),
        ]
    }
}

impl<'a> Builder<'a> {
    pub(crate) fn new(session: &'a mut Session, head: &'a FrameHead, purpose: GraphPurpose) -> Self {
        let (steps, contexts, keep) = (Vec::new(), BTreeSet::new(), GraphMemory::default());
        Self { session, head, steps, contexts, keep, in_body: false, purpose }
    }

    /// Adds all steps to `graph`. Returns the steps without a predecessor, and those without a successor.
    pub(crate) fn graph(
        &mut self,
        graph: CUgraph,
        facts: &GraphFacts,
    ) -> Result<(Vec<CUgraphNode>, Vec<CUgraphNode>), Fault> {
        let mut ends: Vec<StepNodes> = Vec::with_capacity(facts.steps.len());
        for step in &facts.steps {
            ends.push(self.step(graph, step)?);
        }
        let mut is_last = vec![true; ends.len()];
        for (at, step) in facts.steps.iter().enumerate() {
            for edge in &step.dependencies {
                let from = ends.get(edge.from as usize).ok_or(CUresult::ERROR_INVALID_VALUE)?;
                is_last[edge.from as usize] = false;
                let data = match self.purpose {
                    GraphPurpose::Launches => {
                        CUgraphEdgeData { from_port: edge.port, type_: edge.kind, ..CUgraphEdgeData::default() }
                    }
                    // Empty steps have no other ports.
                    GraphPurpose::Preallocation => CUgraphEdgeData::default(),
                };
                self.connect(graph, from.1, ends[at].0, &data)?;
            }
        }
        let first =
            facts.steps.iter().zip(&ends).filter(|(step, _)| step.dependencies.is_empty()).map(|(_, ends)| ends.0);
        let last = is_last.iter().zip(&ends).filter(|(is_last, _)| **is_last).map(|(_, ends)| ends.1);
        Ok((first.collect(), last.collect()))
    }

    fn connect(
        &self,
        graph: CUgraph,
        from: CUgraphNode,
        to: CUgraphNode,
        data: &CUgraphEdgeData,
    ) -> Result<(), CUresult> {
        let plain = data.from_port == 0 && data.type_ == 0;
        let data = if plain { std::ptr::null() } else { std::ptr::from_ref(data) };
        // SAFETY: nodes of this graph, one each, and locals.
        unsafe { self.session.driver().cuGraphAddDependencies_v2(graph, &raw const from, &raw const to, data, 1) }.ok()
    }

    fn step(&mut self, graph: CUgraph, step: &StepFacts) -> Result<StepNodes, Fault> {
        let number = self.steps.len();
        self.steps.push((BuiltStep::Fixed, true));
        self.contexts.extend(context_of(&step.work).map(|context| self.session.owner(context)));
        let node = match &step.work {
            StepWork::Staged { .. } | StepWork::Host { .. } if self.in_body => {
                return Err(CUresult::ERROR_NOT_SUPPORTED.into());
            }
            StepWork::Child => return self.child(graph, step),
            work if self.purpose == GraphPurpose::Preallocation => self.preallocated_node(graph, work)?,
            StepWork::Staged { token, is_source, .. } => {
                let (ends, built) = self.staged(graph, &step.work, *token, *is_source)?;
                self.steps[number].0 = built;
                return Ok(ends);
            }
            StepWork::Conditional { context, handle, kind } => {
                self.conditional(graph, step, (*context, *handle, *kind))?
            }
            StepWork::Empty => self.empty(graph)?,
            _ => {
                let node = self.node(graph, &step.work)?;
                self.steps[number].0 = BuiltStep::One(node);
                node
            }
        };
        Ok((node, node))
    }

    /// Makes a node as large as the real one. The driver keeps host functions, and copies with them, in separate tables, and
    /// bodies of conditional nodes have numbers that count: these become empty nodes.
    fn preallocated_node(&mut self, graph: CUgraph, work: &StepWork) -> Result<CUgraphNode, CUresult> {
        let node = match work {
            StepWork::Kernel { .. } | StepWork::Copy { .. } | StepWork::Fill { .. } => self.node(graph, work).ok(),
            _ => None,
        };
        node.map_or_else(|| self.empty(graph), Ok)
    }

    fn empty(&self, graph: CUgraph) -> Result<CUgraphNode, CUresult> {
        // SAFETY: the output is a local; no dependencies.
        ask(|out| unsafe { self.session.driver().cuGraphAddEmptyNode(out, graph, std::ptr::null(), 0) })
    }

    /// Builds the inner graph between two empty nodes.
    fn child(&mut self, graph: CUgraph, step: &StepFacts) -> Result<StepNodes, Fault> {
        let (entry, exit, plain) = (self.empty(graph)?, self.empty(graph)?, CUgraphEdgeData::default());
        let (first, last) = match step.inner.first() {
            Some(inner) => self.graph(graph, inner)?,
            None => (Vec::new(), Vec::new()),
        };
        first.iter().try_for_each(|node| self.connect(graph, entry, *node, &plain))?;
        last.iter().try_for_each(|node| self.connect(graph, *node, exit, &plain))?;
        if first.is_empty() {
            self.connect(graph, entry, exit, &plain)?;
        }
        Ok((entry, exit))
    }

    fn conditional(
        &mut self,
        graph: CUgraph,
        step: &StepFacts,
        (context, handle, kind): (u32, u64, u32),
    ) -> Result<CUgraphNode, Fault> {
        let ctx: CUcontext = self.session.handle(self.head, context)?;
        let size = step.inner.len() as u32;
        let inner = CUDA_CONDITIONAL_NODE_PARAMS { handle, type_: kind, size, ctx, ..Default::default() };
        let mut params = CUgraphNodeParams { type_: node_type::CONDITIONAL, ..CUgraphNodeParams::default() };
        for (word, bytes) in params.payload.iter_mut().zip(inner.to_bytes().as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        let none = (std::ptr::null(), std::ptr::null());
        let driver = Arc::clone(&self.session.shared.driver);
        // SAFETY: locals; no dependencies.
        let node = ask(|out| unsafe { driver.cuGraphAddNode_v2(out, graph, none.0, none.1, 0, &raw mut params) })?;
        let bodies = std::ptr::with_exposed_provenance::<CUgraph>(params.payload[2] as usize);
        let before = std::mem::replace(&mut self.in_body, true);
        for (at, body) in step.inner.iter().enumerate() {
            // SAFETY: the driver has written the address of as many graphs as were asked for.
            let graph = unsafe { bodies.add(at).read() };
            self.graph(graph, body)?;
        }
        self.in_body = before;
        Ok(node)
    }

    /// Makes a copy and the program's part of it, in the right order.
    fn staged(
        &mut self,
        graph: CUgraph,
        work: &StepWork,
        token: u64,
        is_source: bool,
    ) -> Result<(StepNodes, BuiltStep), Fault> {
        let copy = self.node(graph, work)?;
        let host = self.node(graph, &StepWork::Host { token })?;
        let (first, last) = if is_source { (host, copy) } else { (copy, host) };
        self.connect(graph, first, last, &CUgraphEdgeData::default())?;
        Ok(((first, last), BuiltStep::Staged { copy, host }))
    }

    /// Makes one driver node.
    fn node(&mut self, graph: CUgraph, work: &StepWork) -> Result<CUgraphNode, Fault> {
        let driver = Arc::clone(&self.session.shared.driver);
        let (none, mut node) = (std::ptr::null(), CUgraphNode::NULL);
        let out = &raw mut node;
        match work {
            StepWork::Kernel { attributes, .. } => {
                with_kernel(self.session, self.head, work, |params| {
                    // SAFETY: handles are the driver's own, parameters live for the call.
                    unsafe { driver.cuGraphAddKernelNode_v2(out, graph, none, 0, params) }
                })?;
                for (id, words) in attributes {
                    let value = CUkernelNodeAttrValue { words: *words };
                    // SAFETY: the node was just made; the value is a local.
                    unsafe { driver.cuGraphKernelNodeSetAttribute(node, *id, &raw const value) }.ok()?;
                }
            }
            StepWork::Copy { .. } | StepWork::Staged { .. } => {
                let (copy, ctx) = copy_of(self.session, self.head, work, &mut self.keep)?;
                // SAFETY: both sides are the session's, by the checks of `copy_of`.
                unsafe { driver.cuGraphAddMemcpyNode(out, graph, none, 0, &raw const copy, ctx) }.ok()?;
            }
            StepWork::Fill { .. } => {
                let (fill, ctx) = fill_of(self.session, self.head, work)?;
                // SAFETY: as above.
                unsafe { driver.cuGraphAddMemsetNode(out, graph, none, 0, &raw const fill, ctx) }.ok()?;
            }
            StepWork::Host { token } => {
                let userData = self.keep.function(&self.session.shared, *token);
                let host = CUDA_HOST_NODE_PARAMS { func: run as *const () as usize, userData };
                // SAFETY: `keep` holds the data as long as the graph may run.
                unsafe { driver.cuGraphAddHostNode(out, graph, none, 0, &raw const host) }.ok()?;
            }
            StepWork::Wait(event) => {
                let event: CUevent = self.session.handle(self.head, *event)?;
                // SAFETY: handles are the driver's own.
                unsafe { driver.cuGraphAddEventWaitNode(out, graph, none, 0, event) }.ok()?;
            }
            StepWork::Record(event) => {
                let event: CUevent = self.session.handle(self.head, *event)?;
                // SAFETY: as above.
                unsafe { driver.cuGraphAddEventRecordNode(out, graph, none, 0, event) }.ok()?;
            }
            StepWork::Batch { .. } => {
                let (mut words, ctx) = batch_operations_of(self.session, self.head, work)?;
                let batch = batch_of(&mut words, ctx);
                // SAFETY: as above; the words are locals, which the driver copies.
                unsafe { driver.cuGraphAddBatchMemOpNode(out, graph, none, 0, &raw const batch) }.ok()?;
            }
            StepWork::Empty | StepWork::Child | StepWork::Conditional { .. } => {
                return Err(CUresult::ERROR_INVALID_VALUE.into());
            }
        }
        Ok(node)
    }
}

/// Returns the context of a step, if it depends on one.
fn context_of(work: &StepWork) -> Option<u32> {
    match work {
        StepWork::Kernel { context, .. }
        | StepWork::Copy { context, .. }
        | StepWork::Staged { context, .. }
        | StepWork::Fill { context, .. }
        | StepWork::Batch { context, .. }
        | StepWork::Conditional { context, .. } => Some(*context),
        StepWork::Host { .. } | StepWork::Wait(_) | StepWork::Record(_) | StepWork::Empty | StepWork::Child => None,
    }
}

/// Runs `call` with a kernel's parameters in the driver's form.
fn with_kernel(
    session: &mut Session,
    head: &FrameHead,
    work: &StepWork,
    call: impl FnOnce(*const CUDA_KERNEL_NODE_PARAMS) -> CUresult,
) -> Result<(), Fault> {
    let StepWork::Kernel { function, kernel, context, shape, shared, params, attributes } = work else {
        return Err(CUresult::ERROR_INVALID_VALUE.into());
    };
    session.journal.launched(*kernel, session.current, head.sequence);
    let (func, kern) = (session.handle(head, *function)?, session.handle(head, *kernel)?);
    // NVIDIA's driver refuses the attribute (1) on a node with packed parameters (580.159.04).
    let is_cooperative = attributes.iter().any(|(id, _)| *id == launch_attribute::COOPERATIVE);
    let mut each =
        if is_cooperative { separate_arguments(session.driver(), (func, kern), params)? } else { Vec::new() };
    let mut extra = PackedArguments { size: params.len(), params };
    let mut list = extra.list();
    let is_packed = each.is_empty() && !params.is_empty();
    let [gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ] = *shape;
    let node = CUDA_KERNEL_NODE_PARAMS {
        func,
        kern,
        ctx: session.handle(head, *context)?,
        gridDimX,
        gridDimY,
        gridDimZ,
        blockDimX,
        blockDimY,
        blockDimZ,
        sharedMemBytes: *shared,
        kernelParams: if each.is_empty() { std::ptr::null_mut() } else { each.as_mut_ptr() },
        extra: if is_packed { list.as_mut_ptr() } else { std::ptr::null_mut() },
    };
    Ok(call(&raw const node).ok()?)
}

/// Returns the address of each of a kernel's parameters in `packed`.
fn separate_arguments(
    driver: &Driver,
    (function, kernel): (CUfunction, CUkernel),
    packed: &[u8],
) -> Result<Vec<*mut c_void>, Fault> {
    let parameters = if kernel == CUkernel::NULL {
        gather::parameters_of_function(driver, function)
    } else {
        gather::parameters_of_kernel(driver, kernel)
    };
    let packed_argument = |parameter: ParameterFacts| {
        let (from, size) = (parameter.offset as usize, parameter.size as usize);
        let bytes = packed.get(from..).and_then(|rest| rest.get(..size));
        bytes.map(|bytes| bytes.as_ptr().cast_mut().cast()).ok_or_else(|| CUresult::ERROR_INVALID_VALUE.into())
    };
    parameters.into_iter().map(packed_argument).collect()
}

/// Returns the length in bytes from the first to the last byte that a side of a copy touches, and its start.
fn span(base: u64, first: [usize; 3], pitch: usize, height: usize, extent: [usize; 3]) -> Option<(u64, u64)> {
    let [x, y, z] = first.map(|first| first as u64);
    let [width, rows, slices] = extent.map(|side| side as u64);
    let pitch = if pitch == 0 { x.checked_add(width)? } else { pitch as u64 };
    let height = if height == 0 { y.checked_add(rows)? } else { height as u64 };
    let slice = pitch.checked_mul(height)?;
    let start = z.checked_mul(slice)?.checked_add(y.checked_mul(pitch)?)?.checked_add(x)?;
    let last = slices.checked_sub(1)?.checked_mul(slice)?.checked_add(rows.checked_sub(1)?.checked_mul(pitch)?)?;
    Some((base.checked_add(start)?, last.checked_add(width)?))
}

/// Returns a copy whose sides were checked; a staged one has the worker's memory in place of the program's.
fn copy_of(
    session: &mut Session,
    head: &FrameHead,
    work: &StepWork,
    keep: &mut GraphMemory,
) -> Result<(CUDA_MEMCPY3D, CUcontext), Fault> {
    let (context, bytes, staging) = match work {
        StepWork::Copy { context, copy } => (*context, copy, None),
        StepWork::Staged { context, token, is_source, copy } => (*context, copy, Some((*token, *is_source))),
        _ => return Err(CUresult::ERROR_INVALID_VALUE.into()),
    };
    let mut copy = CUDA_MEMCPY3D::from_bytes(bytes).ok_or(CUresult::ERROR_INVALID_VALUE)?;
    let extent = [copy.WidthInBytes, copy.Height, copy.Depth];
    let check = |session: &Session, base, first, pitch, height| {
        let (start, size) = span(base, first, pitch, height, extent).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        session.address_check.check(start, size)
    };
    if !matches!(staging, Some((_, true))) {
        let first = [copy.srcXInBytes, copy.srcY, copy.srcZ];
        check(session, copy.srcDevice, first, copy.srcPitch, copy.srcHeight)?;
        (copy.srcMemoryType, copy.srcHost) = (memory_type::UNIFIED, std::ptr::null());
    }
    if !matches!(staging, Some((_, false))) {
        let first = [copy.dstXInBytes, copy.dstY, copy.dstZ];
        check(session, copy.dstDevice, first, copy.dstPitch, copy.dstHeight)?;
        (copy.dstMemoryType, copy.dstHost) = (memory_type::UNIFIED, std::ptr::null_mut());
    }
    if let Some((token, is_source)) = staging {
        let size = extent.iter().try_fold(1_u64, |size, side| size.checked_mul(*side as u64));
        let (size, owner) = (size.ok_or(CUresult::ERROR_INVALID_VALUE)?, session.owner(context));
        let block = session.make_in(owner, |shared| shared.staging_blocks.make(&shared.driver, owner, token, size))?;
        keep.staging_blocks.push(token);
        let (pitch, height) = (copy.WidthInBytes, copy.Height);
        if is_source {
            (copy.srcMemoryType, copy.srcHost) = (memory_type::HOST, block.address().cast_const().cast());
            (copy.srcXInBytes, copy.srcY, copy.srcZ, copy.srcPitch, copy.srcHeight) = (0, 0, 0, pitch, height);
        } else {
            (copy.dstMemoryType, copy.dstHost) = (memory_type::HOST, block.address().cast());
            (copy.dstXInBytes, copy.dstY, copy.dstZ, copy.dstPitch, copy.dstHeight) = (0, 0, 0, pitch, height);
        }
    }
    Ok((copy, session.handle(head, context)?))
}

fn fill_of(
    session: &mut Session,
    head: &FrameHead,
    work: &StepWork,
) -> Result<(CUDA_MEMSET_NODE_PARAMS, CUcontext), Fault> {
    let StepWork::Fill { context, address, pitch, value, element, width, height } = work else {
        return Err(CUresult::ERROR_INVALID_VALUE.into());
    };
    let row = width.checked_mul(u64::from(*element));
    let skipped = height.saturating_sub(1).checked_mul(*pitch);
    let size = row.zip(skipped).and_then(|(row, skipped)| skipped.checked_add(row));
    session.address_check.check(*address, size.ok_or(CUresult::ERROR_INVALID_VALUE)?)?;
    let fill = CUDA_MEMSET_NODE_PARAMS {
        dst: *address,
        pitch: *pitch as usize,
        value: *value,
        elementSize: *element,
        width: *width as usize,
        height: *height as usize,
    };
    Ok((fill, session.handle(head, *context)?))
}

fn batch_operations_of(
    session: &mut Session,
    head: &FrameHead,
    work: &StepWork,
) -> Result<(Vec<CUstreamBatchMemOpParams>, CUcontext), Fault> {
    let StepWork::Batch { context, words: operations } = work else { return Err(CUresult::ERROR_INVALID_VALUE.into()) };
    for (_, address, ..) in operations.iter().filter(|operation| operation.1 != 0) {
        session.address_check.check(*address, 4)?;
    }
    let driver_operation = |(operation, address, value, flags): &(u32, u64, u64, u32)| CUstreamBatchMemOpParams {
        operation: *operation,
        address: *address,
        value: *value,
        flags: *flags,
        rest: [0; 2],
    };
    Ok((operations.iter().map(driver_operation).collect(), session.handle(head, *context)?))
}

fn batch_of(operations: &mut [CUstreamBatchMemOpParams], ctx: CUcontext) -> CUDA_BATCH_MEM_OP_NODE_PARAMS {
    CUDA_BATCH_MEM_OP_NODE_PARAMS { ctx, count: operations.len() as u32, paramArray: operations.as_mut_ptr(), flags: 0 }
}

/// Gives a step of an executable graph new parameters, or enables or disables it.
pub(super) fn change(
    session: &mut Session,
    head: &FrameHead,
    exec: &mut Exec,
    number: usize,
    step: &StepFacts,
) -> Result<(), Fault> {
    let (built, was_enabled) = *exec.steps.get(number).ok_or(CUresult::ERROR_INVALID_VALUE)?;
    match built {
        BuiltStep::Fixed => return Ok(()),
        BuiltStep::One(node) => set(session, head, exec, node, &step.work)?,
        BuiltStep::Staged { copy, host } => {
            set(session, head, exec, copy, &step.work)?;
            let StepWork::Staged { token, .. } = &step.work else { return Err(CUresult::ERROR_INVALID_VALUE.into()) };
            let token = if step.is_enabled { *token } else { 0 };
            set(session, head, exec, host, &StepWork::Host { token })?;
        }
    }
    if step.is_enabled != was_enabled {
        let (BuiltStep::One(node) | BuiltStep::Staged { copy: node, .. }) = built else { return Ok(()) };
        // SAFETY: handles are the driver's own.
        unsafe { session.driver().cuGraphNodeSetEnabled(exec.handle, node, u32::from(step.is_enabled)) }.ok()?;
        exec.steps[number].1 = step.is_enabled;
    }
    Ok(())
}

fn set(
    session: &mut Session,
    head: &FrameHead,
    exec: &mut Exec,
    node: CUgraphNode,
    work: &StepWork,
) -> Result<(), Fault> {
    let driver = Arc::clone(&session.shared.driver);
    let handle = exec.handle;
    match work {
        StepWork::Kernel { .. } => with_kernel(session, head, work, |params| {
            // SAFETY: handles are the driver's own, parameters live for the call.
            unsafe { driver.cuGraphExecKernelNodeSetParams_v2(handle, node, params) }
        }),
        StepWork::Copy { .. } | StepWork::Staged { .. } => {
            let (copy, ctx) = copy_of(session, head, work, &mut exec.keep)?;
            // SAFETY: both sides are the session's, by the checks of `copy_of`.
            Ok(unsafe { driver.cuGraphExecMemcpyNodeSetParams(handle, node, &raw const copy, ctx) }.ok()?)
        }
        StepWork::Fill { .. } => {
            let (fill, ctx) = fill_of(session, head, work)?;
            // SAFETY: as above.
            Ok(unsafe { driver.cuGraphExecMemsetNodeSetParams(handle, node, &raw const fill, ctx) }.ok()?)
        }
        StepWork::Host { token } => {
            let userData = exec.keep.function(&session.shared, *token);
            let host = CUDA_HOST_NODE_PARAMS { func: run as *const () as usize, userData };
            // SAFETY: `keep` holds the data as long as the graph may run.
            Ok(unsafe { driver.cuGraphExecHostNodeSetParams(handle, node, &raw const host) }.ok()?)
        }
        StepWork::Wait(event) => {
            let event: CUevent = session.handle(head, *event)?;
            // SAFETY: handles are the driver's own.
            Ok(unsafe { driver.cuGraphExecEventWaitNodeSetEvent(handle, node, event) }.ok()?)
        }
        StepWork::Record(event) => {
            let event: CUevent = session.handle(head, *event)?;
            // SAFETY: as above.
            Ok(unsafe { driver.cuGraphExecEventRecordNodeSetEvent(handle, node, event) }.ok()?)
        }
        StepWork::Batch { .. } => {
            let (mut words, ctx) = batch_operations_of(session, head, work)?;
            let batch = batch_of(&mut words, ctx);
            // SAFETY: as above; the words are locals, which the driver copies.
            Ok(unsafe { driver.cuGraphExecBatchMemOpNodeSetParams(handle, node, &raw const batch) }.ok()?)
        }
        StepWork::Empty | StepWork::Child | StepWork::Conditional { .. } => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_side_reaches_from_its_first_byte_to_its_last() {
        assert_eq!(span(0x1000, [0; 3], 0, 0, [100, 1, 1]), Some((0x1000, 100)));
        assert_eq!(span(0x1000, [4, 1, 0], 64, 0, [32, 4, 1]), Some((0x1000 + 68, 3 * 64 + 32)));
        assert_eq!(span(0x1000, [0, 0, 1], 64, 8, [32, 4, 2]), Some((0x1000 + 512, 512 + 3 * 64 + 32)));
        assert_eq!(span(0x1000, [0; 3], 0, 0, [100, 0, 1]), None);
        assert_eq!(span(u64::MAX, [1, 0, 0], 0, 0, [100, 1, 1]), None);
    }
}

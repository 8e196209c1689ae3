//! Describes a plan for the worker: wire ids for handles, and each copy in the form for this link.

use katydid_cuda_sys::{
    CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS, CUcontext, CUevent, CUgraphEdgeData, CUresult, Pod as _,
};
use katydid_graph::{Kernel, Params, Plan, PlanStep};
use katydid_wire::facts::{EdgeFacts, GraphFacts, StepFacts, StepWork};

use crate::copy::pattern::CheckedMemset;
use crate::copy::rows::{self, CopySides};
use crate::copy::side::{self, CopySide};
use crate::ffi::handle::wire;
use crate::graph::host_work::{self, HostOperation, Rows};
use crate::launch::registry;
use crate::launch::target::LaunchTarget;
use crate::memory::pinned;

/// Describes plans, and records the program's part in them.
#[derive(Default)]
pub(super) struct Describer {
    /// Tokens given out so far.
    pub(super) tokens: Vec<u64>,
    /// Inside a conditional node, for which the driver takes no work of the program.
    in_body: bool,
}

/// Attributes that only order a launch within its stream: in a graph, edges do that.
const OF_STREAMS: [u32; 5] = [0, 3, 6, 7, 12];

/// Returns the wire id of a node's context.
fn context_wire(context: usize) -> Result<u32, CUresult> {
    wire(CUcontext(std::ptr::with_exposed_provenance_mut(context)))
}

impl Describer {
    pub(super) fn graph(&mut self, plan: &Plan) -> Result<GraphFacts, CUresult> {
        let steps = plan.steps.iter().map(|step| self.step(step)).collect::<Result<_, _>>()?;
        Ok(GraphFacts { steps })
    }

    pub(super) fn step(&mut self, step: &PlanStep) -> Result<StepFacts, CUresult> {
        let edge = |(from, data): &(usize, CUgraphEdgeData)| EdgeFacts {
            from: *from as u32,
            port: data.from_port,
            kind: data.type_,
        };
        let work = self.work(&step.params)?;
        let was_in_body = self.in_body;
        self.in_body |= matches!(work, StepWork::Conditional { .. });
        let inner = step.inner.iter().map(|plan| self.graph(plan)).collect::<Result<_, _>>();
        self.in_body = was_in_body;
        Ok(StepFacts {
            dependencies: step.dependencies.iter().map(edge).collect(),
            is_enabled: step.is_enabled,
            work,
            inner: inner?,
        })
    }

    /// Refuses work of the program on these addresses inside a conditional node: with the driver's code for pageable memory,
    /// and as not supported for pinned memory that this link does not share.
    fn check_reachable(&self, addresses: &[u64]) -> Result<(), CUresult> {
        if !self.in_body {
            return Ok(());
        }
        let are_pinned = addresses.iter().map(|address| pinned::is_pinned(*address)).collect::<Result<Vec<_>, _>>()?;
        let is_of_link = are_pinned.into_iter().all(|is_pinned| is_pinned);
        Err(if is_of_link { CUresult::ERROR_NOT_SUPPORTED } else { CUresult::ERROR_INVALID_VALUE })
    }

    /// Makes a token for an operation of the program.
    fn operation(&mut self, operation: HostOperation) -> Result<u64, CUresult> {
        let token = registry::upcalls().new_token();
        host_work::operations().add(token, operation);
        self.tokens.push(token);
        Ok(token)
    }

    fn work(&mut self, params: &Params) -> Result<StepWork, CUresult> {
        Ok(match params {
            Params::Kernel(kernel) => launch(kernel)?,
            Params::Memcpy(it) => self.copy(&it.copy, context_wire(it.context)?)?,
            Params::Memset(it) => self.fill(&it.fill, context_wire(it.context)?)?,
            Params::Host(host) => {
                StepWork::Host { token: self.operation(HostOperation::Call(host.function, host.data))? }
            }
            Params::Child(_) => StepWork::Child,
            Params::WaitEvent(event) => StepWork::Wait(event_wire(*event)?),
            Params::RecordEvent(event) => StepWork::Record(event_wire(*event)?),
            Params::Batch(batch) => {
                let words = batch.operations.iter().map(|it| (it.operation, it.address, it.value, it.flags));
                StepWork::Batch { context: context_wire(batch.context)?, words: words.collect() }
            }
            Params::Conditional(it) => {
                StepWork::Conditional { context: context_wire(it.context)?, handle: it.handle, kind: it.kind }
            }
            Params::Empty | Params::MemAlloc(_) | Params::MemFree(_) => StepWork::Empty,
        })
    }

    /// Describes a fill: it is the program's if only the program reaches the memory.
    fn fill(&mut self, node: &CUDA_MEMSET_NODE_PARAMS, context: u32) -> Result<StepWork, CUresult> {
        let fill = CheckedMemset(*node);
        if matches!(side::of_fill(&fill)?, CopySide::Own(_)) {
            self.check_reachable(&[node.dst])?;
            return Ok(StepWork::Host { token: self.operation(HostOperation::Fill(fill))? });
        }
        Ok(StepWork::Fill {
            context,
            address: node.dst,
            pitch: node.pitch as u64,
            value: node.value,
            element: node.elementSize,
            width: node.width as u64,
            height: node.height as u64,
        })
    }

    /// Describes a copy: it is the worker's if it reaches both sides, the program's if only that does, and has two parts
    /// otherwise.
    fn copy(&mut self, copy: &CUDA_MEMCPY3D, context: u32) -> Result<StepWork, CUresult> {
        let CopySides { target, source, extent } = rows::sides(copy)?;
        let rows = |side: rows::Rows| Rows { start: side.address(), pitch: side.pitch, slice: side.slice };
        let is_own = |side: &rows::Rows| matches!(side.side, CopySide::Own(_));
        let own: Vec<u64> =
            [&target, &source].into_iter().filter(|side| is_own(side)).map(|side| side.address()).collect();
        if !own.is_empty() {
            self.check_reachable(&own)?;
        }
        let mut described = *copy;
        if copy.srcMemoryType == katydid_cuda_sys::memory_type::HOST {
            described.srcDevice = copy.srcHost.addr() as u64;
        }
        if copy.dstMemoryType == katydid_cuda_sys::memory_type::HOST {
            described.dstDevice = copy.dstHost.addr() as u64;
        }
        let staged = |token, is_source| StepWork::Staged { context, token, is_source, copy: described.to_bytes() };
        Ok(match (is_own(&target), is_own(&source)) {
            (false, false) => StepWork::Copy { context, copy: described.to_bytes() },
            (false, true) => staged(self.operation(HostOperation::Gather(rows(source), extent))?, true),
            (true, false) => staged(self.operation(HostOperation::Scatter(rows(target), extent))?, false),
            (true, true) => {
                StepWork::Host { token: self.operation(HostOperation::Move(rows(target), rows(source), extent))? }
            }
        })
    }
}

fn event_wire(event: CUevent) -> Result<u32, CUresult> {
    wire(event)
}

fn launch(kernel: &Kernel) -> Result<StepWork, CUresult> {
    let target = kernel.code.0.downcast_ref::<LaunchTarget>().ok_or(CUresult::ERROR_INVALID_HANDLE)?;
    let (function, named) = target.wire();
    let ([x, y, z], [a, b, c]) = (kernel.grid, kernel.block);
    let attributes = kernel.attributes.iter().filter(|(id, _)| !OF_STREAMS.contains(id));
    Ok(StepWork::Kernel {
        function,
        kernel: named,
        context: context_wire(kernel.context)?,
        shape: [x, y, z, a, b, c],
        shared: kernel.shared,
        params: kernel.arguments.bytes().to_vec(),
        attributes: attributes.map(|(id, value)| (*id, *value)).collect(),
    })
}

//! The backend of the shared model of graphs: the shim checks, the worker runs.
#![expect(unsafe_code, reason = "packs parameters of C callers, and calls functions of the program")]

use std::ffi::c_void;
use std::iter;
use std::sync::Arc;

use katydid_cuda_sys::{
    CUDA_MEM_ALLOC_NODE_PARAMS, CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS, CUcontext, CUevent, CUfunction, CUkernel,
    CUresult, CUstream, CUstreamBatchMemOpParams,
};
use katydid_driver_rules::copy::DeclaredMemory;
use katydid_driver_rules::stream::word_size;
use katydid_graph::{Backend, CaptureStream, Code, GraphId, KeepAlive, Launch, Outcome, Params, Plan, PlanStep};
use katydid_wire::message::{
    kdGraphArguments, kdGraphChange, kdGraphCondition, kdGraphDestroy, kdGraphForget, kdGraphInstantiate,
    kdGraphLaunch, kdGraphUpload, kdUpload,
};

use crate::code::lookup;
use crate::context::request::{call, enqueue};
use crate::context::{device, stack};
use crate::copy::pattern::CheckedMemset;
use crate::copy::rows::{self, CopySides};
use crate::copy::side::{self, CopySide, locate};
use crate::ffi::handle::{object, wire};
use crate::graph::describe::Describer;
use crate::graph::host_work;
use crate::graph::model::RemoteBackend;
use crate::launch::{backpressure, registry, submit, upcall};
use crate::memory::{allocation, block, pinned};
use crate::process::session::shim;
use crate::sync::{stream, wait};

/// Bytes of a description in one message.
const DESCRIPTION_MESSAGE_BYTES: usize = 1 << 20;

/// Sends a launch of a graph, which `is_mixed` if it has work for the program. Returns wire ids of context and stream.
fn send(exec: u32, plan: &Plan, stream: CUstream, is_mixed: bool) -> Outcome<(u32, u32)> {
    // The worker records an event after a graph with work for the program.
    backpressure::take_slots(stream, if is_mixed { 2 } else { 1 })?;
    let (stream, context) = (wire(stream)?, stack::wire()?);
    let steps = iter::once_with(|| plan.flat()).flatten();
    let kernels = steps.filter_map(|step| match &step.params {
        Params::Kernel(kernel) => Some(kernel.arguments.bytes()),
        _ => None,
    });
    let named = pinned::push_named(kernels, context, stream)?;
    let sent = enqueue(&kdGraphLaunch { exec, stream });
    named.sent();
    sent.map(|()| (context, stream))
}

/// Memory that is freed when the last node and launch with it are gone.
struct GraphMemory(u64);

impl Drop for GraphMemory {
    fn drop(&mut self) {
        // After the end of the session there is no memory to free.
        let _ = allocation::free_block(self.0);
    }
}

/// Returns whether only a kernel's arguments change: a driver has no reason to refuse that, so that no thread waits.
fn keeps_its_launch(was: &PlanStep, step: &PlanStep) -> bool {
    match (&was.params, &step.params) {
        (Params::Kernel(old), Params::Kernel(new)) => was.is_enabled && step.is_enabled && old.runs_as(new),
        _ => false,
    }
}

impl Backend for RemoteBackend {
    fn is_kernel(&self, function: usize) -> bool {
        lookup::kernel_of_function(CUfunction(std::ptr::with_exposed_provenance_mut(function))).is_ok()
    }

    fn function_of(&self, kernel: usize, context: usize) -> Outcome<usize> {
        let kernel = object(CUkernel(std::ptr::with_exposed_provenance_mut(kernel)))?;
        let context = object(CUcontext(std::ptr::with_exposed_provenance_mut(context)))?;
        Ok(lookup::function_in(&kernel, &context.owner())?.handle().0.expose_provenance())
    }

    fn context(&self, context: CUcontext) -> Outcome<usize> {
        let context = if context.is_null() { stack::active()? } else { object(context)? };
        Ok(context.slot.handle)
    }

    fn stream(&self, stream: CUstream) -> Outcome<CaptureStream> {
        stream::capture_stream(stream)
    }

    unsafe fn kernel(&self, launch: &Launch) -> Outcome<Code> {
        // SAFETY: handed on.
        unsafe { submit::for_node(launch) }
    }

    fn copy(&self, copy: &CUDA_MEMCPY3D, _context: usize) -> Outcome<(u32, u32)> {
        let CopySides { target, source, .. } = rows::sides(copy)?;
        // The program's own memory, pinned or not, is one kind; each device is another.
        let kind = |rows: &rows::Rows| match rows.side {
            CopySide::Gpu(address) => {
                shim().ok().and_then(|shim| shim.regions.find(address)).map_or(1, |it| it.device + 1)
            }
            CopySide::Shared(_) | CopySide::Own(_) => 0,
        };
        Ok((kind(&target), kind(&source)))
    }

    fn fill(&self, fill: &CUDA_MEMSET_NODE_PARAMS, _context: usize) -> Outcome {
        side::of_fill(&CheckedMemset(*fill)).map(drop)
    }

    fn word(&self, operation: &CUstreamBatchMemOpParams, _context: usize) -> Outcome {
        let Some(size) = word_size(operation)? else { return Ok(()) };
        match locate(DeclaredMemory::Device, operation.address, size)? {
            CopySide::Gpu(_) | CopySide::Shared(_) => Ok(()),
            CopySide::Own(_) => Err(CUresult::ERROR_NOT_SUPPORTED),
        }
    }

    fn event(&self, event: CUevent) -> Outcome {
        object(event).map(drop)
    }

    fn allocate(&self, params: &CUDA_MEM_ALLOC_NODE_PARAMS) -> Outcome<(u64, KeepAlive)> {
        if params.location.id != stack::active()?.device as i32 {
            return Err(CUresult::ERROR_NOT_SUPPORTED);
        }
        let address = block::allocate(params.bytesize as u64)?;
        Ok((address, KeepAlive(Arc::new(GraphMemory(address)))))
    }

    fn device(&self, device: i32) -> Outcome {
        device::get_known(device)
    }

    fn condition(&self, graph: GraphId, context: usize, default: u32, flags: u32) -> Outcome<u64> {
        let context = wire(CUcontext(std::ptr::with_exposed_provenance_mut(context)))?;
        Ok(call(&kdGraphCondition { graph, context, default, flags })?.handle)
    }

    fn forget(&self, graph: GraphId, _conditions: &[u64]) {
        // After the end of the session there is no worker to tell.
        let _ = enqueue(&kdGraphForget { graph });
    }

    fn instantiate(&self, exec: u32, graph: GraphId, plan: &Plan, flags: u64) -> Outcome {
        let mut describer = Describer::default();
        let described = describer.graph(plan);
        let tokens = describer.tokens;
        let sent = described.and_then(|facts| {
            if !tokens.is_empty() {
                upcall::begin()?;
            }
            let bytes = facts.encode();
            for data in bytes.chunks(DESCRIPTION_MESSAGE_BYTES) {
                enqueue(&kdUpload { total: bytes.len() as u64, data })?;
            }
            call(&kdGraphInstantiate { exec, graph, flags }).map(drop)
        });
        match sent {
            Ok(()) => self.tokens().insert(exec, tokens).map_or(Ok(()), |_| Ok(())),
            Err(code) => {
                host_work::operations().leave(tokens, 0);
                Err(code)
            }
        }
    }

    fn change(&self, exec: u32, number: u32, was: &PlanStep, step: &PlanStep) -> Outcome {
        let mut describer = Describer::default();
        // Inner graphs are steps of their own, and are updated separately.
        let facts = describer.step(&PlanStep { inner: Vec::new(), dependencies: Vec::new(), ..step.clone() })?;
        let bytes = facts.encode();
        if keeps_its_launch(was, step) {
            return enqueue(&kdGraphArguments { exec, number, step: &bytes });
        }
        call(&kdGraphChange { exec, number, step: &bytes })?;
        self.tokens().entry(exec).or_default().extend(describer.tokens);
        Ok(())
    }

    fn launch(&self, exec: u32, plan: &Arc<Plan>, stream: CUstream) -> Outcome {
        let is_mixed = !self.tokens_of(exec).is_empty();
        let mark = send(exec, plan, stream, is_mixed)?;
        if is_mixed {
            registry::upcalls().launched(mark, shim()?.session.enqueued());
        }
        if shim()?.launches_block { wait::synchronize(stream) } else { Ok(()) }
    }

    fn run_once(&self, exec: u32, plan: &Arc<Plan>, stream: CUstream) -> Outcome {
        self.instantiate(exec, exec, plan, 0)?;
        let tokens = self.tokens_of(exec);
        host_work::operations().expect_once(&tokens);
        let sent = send(exec, plan, stream, !tokens.is_empty());
        sent.map(drop).and(self.destroy(exec))
    }

    fn upload(&self, exec: u32, stream: CUstream) -> Outcome {
        enqueue(&kdGraphUpload { exec, stream: wire(stream)? })
    }

    fn destroy(&self, exec: u32) -> Outcome {
        let tokens = self.tokens().remove(&exec).unwrap_or_default();
        let shim = shim()?;
        let sent = shim.session.enqueue(stack::wire().unwrap_or(0), &kdGraphDestroy { exec });
        host_work::operations().leave(tokens, shim.session.enqueued());
        sent
    }

    fn destruct(&self, function: usize, data: usize) {
        // SAFETY: the address of a function of the program with this signature, which it registered for one call with this
        // data.
        unsafe {
            let function = std::mem::transmute::<usize, unsafe extern "C" fn(*mut c_void)>(function);
            function(std::ptr::with_exposed_provenance_mut(data));
        }
    }
}

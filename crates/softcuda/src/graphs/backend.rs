//! The backend that the shared model of graphs needs.

#![expect(unsafe_code, reason = "packs parameters of C callers, and calls functions of the program")]

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use katydid_cuda_sys::{
    CUDA_MEM_ALLOC_NODE_PARAMS, CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS, CUcontext, CUevent, CUfunction, CUstream,
    CUstreamBatchMemOpParams,
};
use katydid_driver_rules::cluster::requested_cluster;
use katydid_graph::{Backend, CaptureStream, Code, GraphId, KeepAlive, Launch, Plan, PlanStep};

use super::prepared::{PreparedKernel, context_of, fill_span, of_launch};
use super::tasks::Tasks;
use super::volume::Volume;
use super::{condition, run};
use crate::code::launch::{LaunchGeometry, events, is_cooperative};
use crate::code::library::{self, callable};
use crate::code::params::pack;
use crate::context::stack;
use crate::ffi::{Outcome, unsupported};
use crate::memory::{allocation, space};
use crate::process::{device, settings};
use crate::sync::event::{self, EventMark};
use crate::sync::job::StreamJob;
use crate::sync::memory_word::Operation;
use crate::sync::stream::Stream;
use crate::sync::streams::resolve;
use crate::sync::synchronize;

/// Alignment of memory that graphs allocate, in bytes.
const GRAPH_MEMORY_ALIGN_BYTES: u64 = 512;

/// The end of each executable graph's latest launch; graphs without a launch have none.
static LATEST_LAUNCHES: Mutex<Option<HashMap<u32, Arc<EventMark>>>> = Mutex::new(None);

fn last() -> MutexGuard<'static, Option<HashMap<u32, Arc<EventMark>>>> {
    LATEST_LAUNCHES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// This library as a backend of graphs.
#[derive(Debug)]
pub(crate) struct SoftBackend;

/// Memory that is freed with the last node and launch that use it.
struct Memory(u64);

impl Drop for Memory {
    fn drop(&mut self) {
        let region = space::write().remove(self.0);
        if let Some(region) = region {
            let _ = allocation::give_back(&region);
        }
    }
}

impl Backend for SoftBackend {
    fn is_kernel(&self, function: usize) -> bool {
        library::resolve_kernel(function).is_ok()
    }

    fn function_of(&self, kernel: usize, context: usize) -> Outcome<usize> {
        Ok(library::resolve_kernel(kernel)?.function(&*context_of(context)?)?.handle)
    }

    fn context(&self, context: CUcontext) -> Outcome<usize> {
        Ok(stack::named(context.0.addr())?.handle)
    }

    fn stream(&self, stream: CUstream) -> Outcome<CaptureStream> {
        resolve(stream).map(|stream| Stream::capture_stream(&stream))
    }

    unsafe fn kernel(&self, launch: &Launch) -> Outcome<Code> {
        let context = match launch.context {
            0 => stack::usable()?,
            handle => context_of(handle)?,
        };
        let named = if launch.function == 0 { launch.kernel } else { launch.function };
        let function = CUfunction(std::ptr::without_provenance_mut(named));
        let (kernel, settings) = callable(function, &context)?;
        let attributes = of_launch(&launch.attributes);
        let cooperative = is_cooperative(&attributes);
        let (grid, block, shared) = (launch.grid, launch.block, launch.shared);
        let mut shape = LaunchGeometry { grid, block, shared, cooperative, cluster: requested_cluster(&attributes) };
        shape.check(&kernel, &settings, context.device)?;
        if !events(&attributes)?.is_empty() {
            return Err(unsupported("an event of a launch in a graph"));
        }
        // SAFETY: the contract of this function.
        let bytes = unsafe { pack(&kernel, launch.array, launch.extra) }?;
        let offsets = kernel.params.iter().map(|param| param.offset as usize).collect();
        let name = kernel.name.as_str().into();
        let keep_alive = KeepAlive(Arc::new(PreparedKernel { kernel, shape }));
        Ok(Code { bytes, offsets, context: context.handle, name, keep_alive })
    }

    fn copy(&self, copy: &CUDA_MEMCPY3D, context: usize) -> Outcome<(u32, u32)> {
        Ok(Volume::new(&*context_of(context)?, copy)?.kinds())
    }

    fn fill(&self, fill: &CUDA_MEMSET_NODE_PARAMS, context: usize) -> Outcome {
        fill_span(&*context_of(context)?, fill).map(drop)
    }

    fn word(&self, operation: &CUstreamBatchMemOpParams, context: usize) -> Outcome {
        Operation::of_batch(&*context_of(context)?, operation).map(drop)
    }

    fn event(&self, event: CUevent) -> Outcome {
        event::resolve(event).map(drop)
    }

    fn allocate(&self, params: &CUDA_MEM_ALLOC_NODE_PARAMS) -> Outcome<(u64, KeepAlive)> {
        let context = stack::usable()?;
        if params.location.id != context.device.ordinal {
            return Err(unsupported("memory of another device in a graph"));
        }
        let address = allocation::allocate_aligned(&context, params.bytesize as u64, GRAPH_MEMORY_ALIGN_BYTES)?;
        Ok((address, KeepAlive(Arc::new(Memory(address)))))
    }

    fn device(&self, device: i32) -> Outcome {
        device::get(device).map(drop)
    }

    fn condition(&self, _graph: GraphId, _context: usize, default: u32, flags: u32) -> Outcome<u64> {
        Ok(condition::create((flags != 0).then_some(default)))
    }

    fn forget(&self, _graph: GraphId, conditions: &[u64]) {
        conditions.iter().copied().for_each(condition::forget);
    }

    fn instantiate(&self, _exec: u32, _graph: GraphId, plan: &Plan, _flags: u64) -> Outcome {
        Tasks::check(plan)
    }

    fn change(&self, _exec: u32, _number: u32, _was: &PlanStep, _step: &PlanStep) -> Outcome {
        Ok(())
    }

    fn launch(&self, exec: u32, plan: &Arc<Plan>, stream: CUstream) -> Outcome {
        let stream = resolve(stream)?;
        stream.context()?.output.flush();
        let tasks = Tasks::new(plan)?;
        let done = Arc::new(EventMark::default());
        let old_done = last().get_or_insert_default().insert(exec, Arc::clone(&done));
        // The mark is always reached, whatever becomes of the graph: the next launch waits for it.
        let job = StreamJob::always(move |context| {
            if let Some(old_done) = old_done {
                old_done.wait();
            }
            let outcome = if context.healthy().is_ok() { run::tasks(&tasks, context) } else { tasks.give_up() };
            done.reach();
            outcome
        });
        stream.submit(job)?;
        if settings::launches_block() { synchronize::stream(&stream) } else { Ok(()) }
    }

    fn upload(&self, _exec: u32, stream: CUstream) -> Outcome {
        resolve(stream).map(drop)
    }

    fn destroy(&self, exec: u32) -> Outcome {
        if let Some(last) = last().as_mut() {
            last.remove(&exec);
        }
        Ok(())
    }

    fn destruct(&self, function: usize, data: usize) {
        // SAFETY: the address of a function of the program with this signature, which it registered to be called once
        // with this data.
        unsafe {
            let function = std::mem::transmute::<usize, unsafe extern "C" fn(*mut c_void)>(function);
            function(std::ptr::with_exposed_provenance_mut(data));
        }
    }
}

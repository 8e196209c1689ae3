//! Launches: checked as the real driver checks them, then run by the interpreter in stream order.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use katydid_cuda_sys::{CUevent, CUlaunchAttribute, CUresult, launch_attribute as id};
use katydid_driver_rules::cluster::Cluster;
use katydid_driver_rules::launch::{self as rules, GeometryLimits};
use katydid_ptx_exec::texture::Bound;
use katydid_ptx_exec::{
    AddressRange, DeviceHeap, Fault, FaultKind, Grid, Host, Kernel, Launch, Question, Race, RunLimits,
};

use crate::code::function_settings::FunctionSettings;
use crate::code::occupancy::{BlockNeeds, threads_by_registers};
use crate::code::{clusters, module};
use crate::context::state::Context;
use crate::ffi::{Outcome, report};
use crate::graphs::condition;
use crate::memory::allocation;
use crate::memory::space::{self, Access, RangeKind};
use crate::process::attributes::{BLOCK_EXTENT, GRID_EXTENT, MAX_BLOCK_THREADS};
use crate::process::device::{self, Device};
use crate::process::settings;
use crate::sync::event::{self, Event};
use crate::sync::hold::{self, LaunchOrigin};
use crate::sync::job::StreamJob;
use crate::sync::stream::Stream;
use crate::texture::object::{self, Bindings};
use crate::texture::reference;

/// Stands for the stream of a graph's node in `hold`.
const NO_STREAM: usize = 0;

/// Geometry of a launch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaunchGeometry {
    /// Blocks of the grid, along each axis.
    pub(crate) grid: [u32; 3],
    /// Threads of a block, along each axis.
    pub(crate) block: [u32; 3],
    /// Dynamic shared memory in bytes.
    pub(crate) shared: u32,
    /// All blocks are on the device at once.
    pub(crate) cooperative: bool,
    /// The requested cluster; after the check, the actual one.
    pub(crate) cluster: Option<Cluster>,
}

impl LaunchGeometry {
    /// Refuses what `device` or the kernel does not allow, and settles the cluster.
    pub(crate) fn check(&mut self, kernel: &Kernel, settings: &FunctionSettings, device: &Device) -> Outcome {
        const LIMITS: GeometryLimits =
            GeometryLimits { grid: GRID_EXTENT, block: BLOCK_EXTENT, threads: MAX_BLOCK_THREADS };
        let threads = LIMITS.check(self.grid, self.block)?;
        let is_required = kernel.required_block.is_none_or(|block| block == self.block);
        if threads > u64::from(kernel.max_threads) || !is_required {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        if threads > u64::from(threads_by_registers(kernel)) {
            return Err(CUresult::ERROR_LAUNCH_OUT_OF_RESOURCES);
        }
        if self.cooperative {
            self.check_together(kernel, settings, device)?;
        }
        let most_shared = settings.most_dynamic.load(Ordering::Relaxed);
        if self.shared > most_shared {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        self.cluster = clusters::of_launch(self.cluster, self.grid, kernel, settings)?;
        Ok(())
    }

    /// Refuses a cooperative grid that the device cannot hold at once, which includes too much shared memory.
    fn check_together(&self, kernel: &Kernel, settings: &FunctionSettings, device: &Device) -> Outcome {
        let threads = rules::threads(self.block) as i32;
        let each = BlockNeeds::of(kernel, settings).blocks(threads, self.shared as usize)?;
        rules::check_cooperative(self.grid, each, device.multiprocessors())
    }
}

/// Returns whether attributes ask for a cooperative launch. The last such attribute counts.
pub(crate) fn is_cooperative(attributes: &[CUlaunchAttribute]) -> bool {
    let cooperative = attributes.iter().rfind(|attribute| attribute.id == id::COOPERATIVE);
    cooperative.is_some_and(|attribute| attribute.value[0] as u32 != 0)
}

impl LaunchGeometry {
    /// Returns the launch of a kernel with packed parameters.
    pub(crate) fn launch(self, kernel: Arc<Kernel>, params: Vec<u8>) -> Launch {
        let Self { grid, block, shared, cooperative, cluster } = self;
        Launch { kernel, grid, block, dynamic_shared: shared, params, cooperative, cluster }
    }
}

/// Returns what the attributes of `cuLaunchKernelEx` ask for beyond hints: events to record after the kernel.
pub(crate) fn events(attributes: &[CUlaunchAttribute]) -> Outcome<Vec<Arc<Event>>> {
    let mut events = Vec::new();
    for attribute in attributes {
        let word = attribute.value[0];
        match attribute.id {
            // Such an event may be recorded late: when the whole kernel is done, all its promises hold.
            id::PROGRAMMATIC_EVENT | id::LAUNCH_COMPLETION_EVENT => {
                let handle = std::ptr::with_exposed_provenance_mut(word as usize);
                events.push(event::resolve(CUevent(handle))?);
            }
            // A device can change only captured launches.
            id::DEVICE_UPDATABLE_KERNEL_NODE => return Err(CUresult::ERROR_NOT_SUPPORTED),
            id::PREFERRED_SHARED_MEMORY_CARVEOUT if word as u32 > 100 => return Err(CUresult::ERROR_INVALID_VALUE),
            // Only streams have a policy for waiting threads.
            id::SYNCHRONIZATION_POLICY => return Err(CUresult::ERROR_INVALID_VALUE),
            // The other attributes of CUDA 13.0 are hints, or ask for nothing.
            0..=14 | 16 => {}
            _ => return Err(CUresult::ERROR_INVALID_VALUE),
        }
    }
    Ok(events)
}

/// Submits a checked launch to `stream`.
pub(crate) fn launch(stream: &Arc<Stream>, kernel: Arc<Kernel>, shape: LaunchGeometry, params: Vec<u8>) -> Outcome {
    stream.context()?.output.flush();
    let (launch, handle, references) = (shape.launch(kernel, params), stream.handle, reference::bindings());
    stream.submit(StreamJob::new(move |context| run_grid(context, handle, Grid::new(launch), references))).map(drop)
}

/// Submits a launch that was saved as bytes to `stream`, whose context has its module.
pub(crate) fn resume(stream: &Arc<Stream>, state: &[u8]) -> Outcome {
    let context = stream.context()?;
    let grid = Grid::from_bytes(state, |name, fingerprint| {
        let modules = module::of_context(context.id);
        let mut kernels = modules.iter().filter_map(|module| module.kernel(name).ok());
        kernels.find(|kernel| kernel.fingerprint() == fingerprint)
    });
    let grid = grid.map_err(|error| {
        report(&error.to_string());
        CUresult::ERROR_INVALID_VALUE
    })?;
    let (handle, references) = (stream.handle, reference::bindings());
    stream.submit(StreamJob::new(move |context| run_grid(context, handle, Ok(grid), references))).map(drop)
}

/// Runs a launch of a graph to its end, or to its fault.
pub(crate) fn run(context: &Context, launch: Launch) -> Outcome {
    run_grid(context, NO_STREAM, Grid::new(launch), reference::bindings())
}

/// Runs a grid of `stream` to its end, or to its fault.
fn run_grid(context: &Context, stream: usize, grid: Result<Grid, Fault>, references: Bindings) -> Outcome {
    let _working = space::working();
    let limits = RunLimits { threads: settings::cores(), budget: u64::MAX };
    let origin = LaunchOrigin { context: context.handle, stream };
    let host = DeviceSpace { context, device: context.device.ordinal, peers: context.peers(), references };
    let outcome = grid.and_then(|grid| hold::run(origin, grid, &host, limits, &context.switch));
    outcome.map_err(|fault| {
        if settings::logging() {
            report(&fault.to_string());
        }
        code_of(fault.kind)
    })
}

/// Returns the sticky error code of a fault.
fn code_of(kind: FaultKind) -> CUresult {
    match kind {
        FaultKind::IllegalAddress(_) | FaultKind::StackOverflow => CUresult::ERROR_ILLEGAL_ADDRESS,
        FaultKind::MisalignedAddress(_) => CUresult::ERROR_MISALIGNED_ADDRESS,
        FaultKind::InvalidPc(_) | FaultKind::BadTensorMap(_) => CUresult::ERROR_ILLEGAL_INSTRUCTION,
        FaultKind::Assert => CUresult::ERROR_ASSERT,
        FaultKind::Deadlock => CUresult::ERROR_LAUNCH_TIMEOUT,
        FaultKind::BadLaunch => CUresult::ERROR_INVALID_VALUE,
        _ => CUresult::ERROR_LAUNCH_FAILED,
    }
}

/// The memory that running code reaches: the address space, as its device and peers see it.
struct DeviceSpace<'context> {
    context: &'context Context,
    device: i32,
    peers: u32,
    /// Bindings of texture and surface references at submission.
    references: Bindings,
}

impl Host for DeviceSpace<'_> {
    fn range_of(&self, address: u64) -> Option<AddressRange> {
        let space = space::read();
        let region = space.find_reach(address)?;
        let writable = match region.access(self.device, self.peers) {
            Access::None if region.kind == RangeKind::Heap && region.context == self.context.handle => true,
            Access::None => return None,
            _ if region.kind == RangeKind::Array => return None,
            Access::Read => false,
            Access::ReadWrite => true,
        };
        Some(AddressRange { start: region.start, end: region.reach(), writable })
    }

    fn bound(&self, handle: u64) -> Option<Bound> {
        object::bound(handle, self.device, self.peers, &self.references)
    }

    fn print(&self, text: &[u8]) {
        self.context.output.print(text);
    }

    fn assert_failed(&self, text: &str) {
        self.context.output.complain(text);
    }

    fn allocate(&self, pool: DeviceHeap, size: u64, align: u64) -> Option<u64> {
        allocation::allocate_in_heap(self.context, pool, size, align)
    }

    fn answer(&self, question: Question) -> Option<u64> {
        match question {
            Question::Device => u64::try_from(self.device).ok(),
            Question::DeviceCount => Some(device::all().len() as u64),
            Question::Attribute { device, id } => {
                let value = device::get(device).and_then(|device| device.attribute(id)).ok()?;
                Some(u64::from(value.cast_unsigned()))
            }
            Question::Limit(id) => self.context.limits.get(id).ok(),
            Question::Occupancy { registers, max_threads, static_shared, threads, dynamic_shared } => {
                let needs = BlockNeeds::plain(registers, static_shared, max_threads);
                let threads = i32::try_from(threads).ok()?;
                let blocks = needs.blocks(threads, usize::try_from(dynamic_shared).ok()?).ok()?;
                Some(u64::from(blocks))
            }
        }
    }

    fn free(&self, pool: DeviceHeap, address: u64) {
        self.context.heaps.free(pool, address);
    }

    fn race_seed(&self) -> Option<u64> {
        settings::races()
    }

    fn race(&self, race: &Race) {
        /// Most reported races. Each pair of lines of a kernel counts once.
        const MAX_REPORTED_RACES: usize = 100;
        static REPORTED_RACES: Mutex<BTreeSet<(String, u32, u32)>> = Mutex::new(BTreeSet::new());
        let mut reported = REPORTED_RACES.lock().unwrap_or_else(PoisonError::into_inner);
        let (first_line, second_line) = (race.first.line, race.second.line);
        let pair = (race.kernel.clone(), first_line.min(second_line), first_line.max(second_line));
        if reported.len() < MAX_REPORTED_RACES && reported.insert(pair) {
            self.context.output.complain(&format!("softcuda: {race}\n"));
        }
    }

    fn set_condition(&self, handle: u64, value: u32) {
        condition::set(handle, value);
    }
}

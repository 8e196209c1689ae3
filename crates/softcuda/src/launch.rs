//! Launches: checked as the real driver checks them, then run by the interpreter when their turn comes.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use katydid_cuda_sys::{CUevent, CUlaunchAttribute, CUresult, launch_attribute as id};
use katydid_ptx_exec::{AddressRange, FaultKind, Grid, Host, Kernel, Launch, Limits, Pool, Progress};

use crate::attributes::{BLOCK, BLOCK_THREADS, GRID, REGISTERS};
use crate::border::{Outcome, say, unsupported};
use crate::context::Context;
use crate::event::{self, Event};
use crate::function::Settings;
use crate::job::Job;
use crate::space::{self, Access, Kind};
use crate::stream::Stream;
use crate::{graphs, settings};

/// Geometry of a launch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// Blocks.
    pub(crate) grid: [u32; 3],
    /// Threads of a block.
    pub(crate) block: [u32; 3],
    /// Dynamic shared memory in bytes.
    pub(crate) shared: u32,
}

impl Shape {
    /// Refuses what the device or the kernel does not allow.
    pub(crate) fn check(&self, kernel: &Kernel, settings: &Settings) -> Outcome {
        let fits =
            |sizes: [u32; 3], most: [u32; 3]| sizes.iter().zip(most).all(|(size, most)| (1..=most).contains(size));
        let threads: u64 = self.block.iter().map(|size| u64::from(*size)).product();
        let required = kernel.required_block.is_none_or(|block| block == self.block);
        if !fits(self.grid, GRID)
            || !fits(self.block, BLOCK)
            || threads > u64::from(kernel.max_threads.min(BLOCK_THREADS))
            || self.shared > settings.most_dynamic.load(Ordering::Relaxed)
            || !required
        {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        // Registers are given out to whole warps, 8 a thread at a time.
        let registers = u64::from(kernel.registers.next_multiple_of(8)) * threads.next_multiple_of(32);
        if registers > u64::from(REGISTERS) { Err(CUresult::ERROR_LAUNCH_OUT_OF_RESOURCES) } else { Ok(()) }
    }
}

impl Shape {
    /// The launch of a kernel with packed parameters.
    pub(crate) fn launch(self, kernel: Arc<Kernel>, params: Vec<u8>) -> Launch {
        let Self { grid, block, shared } = self;
        Launch { kernel, grid, block, dynamic_shared: shared, params, cooperative: false, cluster: None }
    }
}

/// What the attributes of `cuLaunchKernelEx` ask for beyond hints: events to be recorded behind the kernel.
pub(crate) fn events(attributes: &[CUlaunchAttribute]) -> Outcome<Vec<Arc<Event>>> {
    let mut events = Vec::new();
    for attribute in attributes {
        let word = attribute.value[0];
        let dimensions = [word as u32, (word >> 32) as u32, attribute.value[1] as u32];
        match attribute.id {
            id::COOPERATIVE if word as u32 != 0 => return Err(unsupported("a cooperative launch")),
            id::CLUSTER_DIMENSION | id::PREFERRED_CLUSTER_DIMENSION if dimensions.iter().any(|size| *size > 1) => {
                return Err(unsupported("a launch in clusters"));
            }
            // Recording such an event late, when the whole kernel is done, keeps every promise made by it.
            id::PROGRAMMATIC_EVENT | id::LAUNCH_COMPLETION_EVENT => {
                let handle = std::ptr::with_exposed_provenance_mut(word as usize);
                events.push(event::resolve(CUevent(handle))?);
            }
            id::DEVICE_UPDATABLE_KERNEL_NODE if word as u32 != 0 => {
                return Err(unsupported("a launch that makes a graph node"));
            }
            // 0 to 18 are those of CUDA 13.0; what is left of them are hints, or asks for nothing.
            0..=18 => {}
            other => return Err(unsupported(&format!("launch attribute {other}"))),
        }
    }
    Ok(events)
}

/// Puts a checked launch into `stream`.
pub(crate) fn launch(stream: &Arc<Stream>, kernel: Arc<Kernel>, shape: Shape, params: Vec<u8>) -> Outcome {
    stream.context()?.output.flush();
    let launch = shape.launch(kernel, params);
    stream.submit(Job::new(move |context| run(context, launch))).map(drop)
}

/// Runs a launch to its end, or to its fault.
pub(crate) fn run(context: &Context, launch: Launch) -> Outcome {
    let _working = space::working();
    let blocks: u64 = launch.grid.iter().map(|size| u64::from(*size)).product();
    let threads = settings::cores().min(usize::try_from(blocks).unwrap_or(usize::MAX)).max(1);
    let limits = Limits { threads, budget: u64::MAX };
    let host = Reach { context, device: context.device.ordinal, peers: context.peers() };
    let outcome = Grid::new(launch).and_then(|mut grid| {
        while grid.run(&host, limits, &context.switch)? == Progress::Paused {}
        Ok(())
    });
    outcome.map_err(|fault| {
        if settings::logging() {
            say(&fault.to_string());
        }
        code_of(fault.kind)
    })
}

/// The code that sticks to the context after a fault.
fn code_of(kind: FaultKind) -> CUresult {
    match kind {
        FaultKind::IllegalAddress(_) | FaultKind::StackOverflow => CUresult::ERROR_ILLEGAL_ADDRESS,
        FaultKind::MisalignedAddress(_) => CUresult::ERROR_MISALIGNED_ADDRESS,
        FaultKind::InvalidPc(_) => CUresult::ERROR_ILLEGAL_INSTRUCTION,
        FaultKind::Assert => CUresult::ERROR_ASSERT,
        FaultKind::Deadlock => CUresult::ERROR_LAUNCH_TIMEOUT,
        FaultKind::BadLaunch => CUresult::ERROR_INVALID_VALUE,
        _ => CUresult::ERROR_LAUNCH_FAILED,
    }
}

/// What running code reaches: the space, as its device and peers see it.
struct Reach<'context> {
    context: &'context Context,
    device: i32,
    peers: u32,
}

impl Host for Reach<'_> {
    fn range_of(&self, address: u64) -> Option<AddressRange> {
        let space = space::read();
        let region = space.find_reach(address)?;
        let writable = match region.access(self.device, self.peers) {
            Access::None if region.kind == Kind::Heap && region.context == self.context.handle => true,
            Access::None => return None,
            Access::Read => false,
            Access::ReadWrite => true,
        };
        Some(AddressRange { start: region.start, end: region.reach(), writable })
    }

    fn print(&self, text: &[u8]) {
        self.context.output.print(text);
    }

    fn assert_failed(&self, text: &str) {
        self.context.output.complain(text);
    }

    fn allocate(&self, pool: Pool, size: u64, align: u64) -> Option<u64> {
        self.context.heaps.allocate(self.context, pool, size, align)
    }

    fn free(&self, pool: Pool, address: u64) {
        self.context.heaps.free(pool, address);
    }

    fn set_condition(&self, handle: u64, value: u32) {
        graphs::set_condition(handle, value);
    }
}

//! `ServerState`: the settings, tables and descriptors that all threads of a server use.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use katydid_transport::Address;
use katydid_wire::handshake::Build;

use crate::nvml_processes::NvmlProcesses;
use crate::pool::WorkerPool;
use crate::report::Reporter;
use crate::sessions::Sessions;
use crate::slots::{Greetings, SlotLimits};
use crate::workers::handle::{DriverFound, WorkerNeeds};
use crate::workers::spawn::{MemoryLimits, WorkerCommand};

/// Said once, when [`ServerState::stop_loading_opencl`] has had its effect.
const LOADS_NO_MORE: &str = "a worker ended that was to load OpenCL drivers before a program comes; workers of this server load \
    none in advance any more, so OpenCL programs start later: find the faulty driver with katydid doctor, name the others in \
    KATYDID_OPENCL_DRIVERS, and restart the server";

/// What all threads of a server use.
#[derive(Debug)]
pub(crate) struct ServerState {
    pub(crate) pool: WorkerPool,
    pub(crate) sessions: Sessions,
    pub(crate) reporter: Reporter,
    pub(crate) build: Build,
    pub(crate) hello_timeout: Duration,
    pub(crate) slots: SlotLimits,
    pub(crate) greetings: Greetings,
    pub(crate) watchers: NvmlProcesses,
    pub(crate) session_memory: Option<u64>,
    pub(crate) cpu_opencl: bool,
    /// Keepers for peers over networks.
    pub(crate) worker_images: bool,
    pub(crate) driver: String,
    pub(crate) addresses: Vec<Address>,
    pub(crate) started: u64,
    pub(crate) worker: WorkerCommand,
    pub(crate) memory_limits: MemoryLimits,
    /// The only program's user has heard that it has no GPU.
    pub(crate) is_warned: AtomicBool,
    /// Reports failures to start a worker. Before its first worker, a server that is useless without one returns the failure instead.
    pub(crate) tells_failures: AtomicBool,
    /// Readable, for good, once the server stops.
    pub(crate) stop: OwnedFd,
}

impl ServerState {
    /// A worker never became ready.
    pub(crate) fn start_failed(&self, reason: &str, need: WorkerNeeds) {
        self.stop_loading_opencl(need);
        let rest = self.pool.failed(reason, need);
        let rest = rest.as_secs_f32();
        if self.tells_failures.load(Ordering::Relaxed) {
            self.reporter.problem(format_args!("a worker could not be started: {reason} (next attempt in {rest} s)"));
        }
    }

    /// A worker of this need ended before it served any process: if it was to load drivers of OpenCL, no further one does.
    pub(crate) fn stop_loading_opencl(&self, need: WorkerNeeds) {
        if need.loads_opencl && self.pool.stop_loading_opencl() {
            self.reporter.problem(format_args!("{LOADS_NO_MORE}"));
        }
    }

    /// Workers have another driver than before, or their first.
    pub(crate) fn driver_changed(&self, driver: &DriverFound) {
        self.tells_failures.store(true, Ordering::Relaxed);
        match &driver.gpu_error {
            None => self.reporter.note(format_args!("driver {}", driver.name)),
            Some(reason) => self.reporter.problem(format_args!("driver {}: {}", driver.name, NoGpu(reason))),
        }
        let no_groups = self.memory_limits.no_groups.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(reason) = no_groups {
            self.reporter
                .note(format_args!("workers have no control groups, the server measures their memory: {reason}"));
        }
    }

    /// A program of CUDA has a worker with this driver: if it is the only one, its user hears once that it has no GPU.
    pub(crate) fn note_driver(&self, driver: Option<&DriverFound>) {
        let reason = driver.and_then(|driver| driver.gpu_error.as_ref());
        if let Some(reason) = reason.filter(|_| !self.is_warned.swap(true, Ordering::Relaxed)) {
            self.reporter.warning(format_args!("warning: {}", NoGpu(reason)));
        }
    }
}

/// Tells that softcuda was taken, why, and what to do.
pub(crate) struct NoGpu<'a>(pub(crate) &'a str);

impl fmt::Display for NoGpu<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(reason) = self;
        write!(out, "no GPU is used, CUDA runs on this machine's processors (softcuda): {reason}; ")?;
        out.write_str("--require-gpu refuses to run without a GPU, --driver soft takes softcuda without this line")
    }
}

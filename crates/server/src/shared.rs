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

/// Reported once, when [`ServerState::stop_loading_opencl`] takes effect.
const LOADS_NO_MORE: &str = "a worker ended while it loaded OpenCL drivers, so workers load none in advance; find the faulty \
    driver with katydid doctor, name the others in KATYDID_OPENCL_DRIVERS, and restart the server";

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
    /// Whether peers over networks may have keepers.
    pub(crate) worker_images: bool,
    pub(crate) driver: String,
    pub(crate) addresses: Vec<Address>,
    pub(crate) started: u64,
    pub(crate) worker: WorkerCommand,
    pub(crate) memory_limits: MemoryLimits,
    /// Whether the only program's user was told that there is no GPU.
    pub(crate) is_warned: AtomicBool,
    /// Whether failures to start a worker are reported. Before its first worker, a server that is useless without one returns the
    /// failure instead.
    pub(crate) tells_failures: AtomicBool,
    /// Becomes readable, for good, when the server stops.
    pub(crate) stop: OwnedFd,
}

impl ServerState {
    /// Notes that a worker failed before it was ready.
    pub(crate) fn start_failed(&self, reason: &str, need: WorkerNeeds) {
        self.stop_loading_opencl(need);
        let rest = self.pool.failed(reason, need);
        let rest = rest.as_secs_f32();
        if self.tells_failures.load(Ordering::Relaxed) {
            self.reporter.problem(format_args!("a worker could not be started: {reason} (next attempt in {rest} s)"));
        }
    }

    /// Notes that a worker with this need ended before it served a program. If it was to load drivers of OpenCL, no further one
    /// does.
    pub(crate) fn stop_loading_opencl(&self, need: WorkerNeeds) {
        if need.loads_opencl && self.pool.stop_loading_opencl() {
            self.reporter.problem(format_args!("{LOADS_NO_MORE}"));
        }
    }

    /// Reports the workers' driver when it is the first one, or differs from the one before.
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

    /// Notes the driver of a CUDA program's worker. The user of an only program learns once that it has no GPU.
    pub(crate) fn note_driver(&self, driver: Option<&DriverFound>) {
        let reason = driver.and_then(|driver| driver.gpu_error.as_ref());
        if let Some(reason) = reason.filter(|_| !self.is_warned.swap(true, Ordering::Relaxed)) {
            self.reporter.warning(format_args!("warning: {}", NoGpu(reason)));
        }
    }
}

/// Formats the message that softcuda was chosen, why, and what to do.
pub(crate) struct NoGpu<'a>(pub(crate) &'a str);

impl fmt::Display for NoGpu<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(reason) = self;
        write!(out, "no GPU is used, CUDA runs on this machine's processors (softcuda): {reason}; ")?;
        out.write_str("--require-gpu refuses to run without a GPU, --driver soft takes softcuda without this line")
    }
}

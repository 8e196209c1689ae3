//! The measuring program: every kernel on one device and a number of cores, with figures as JSON.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::{Deserialize, Serialize};

use super::cuda::Soft;
use super::device::Device;
use super::opencl::OpenCl;
use super::work::{KERNEL_WORKS, KernelWork};
use crate::flags::{BenchSoftBodyFlags, SoftDevice};
use katydid_cli_core::layout::Layout;
use katydid_cli_core::output::failure::{Failure, Outcome};

/// Measuring time of a kernel. The best launch counts, since every disturbance makes it slower.
const KERNEL_TIME: Duration = Duration::from_millis(700);
const QUICK_KERNEL_TIME: Duration = Duration::from_millis(150);

/// Output of one run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Report {
    /// Name of the device.
    pub(super) device: String,
    /// Figures by name of the kernel.
    pub(super) figures: BTreeMap<String, Figure>,
}

/// One kernel on one device.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Figure {
    /// Seconds of the best launch.
    pub(super) seconds: f64,
    /// Warp instructions of a launch.
    pub(super) executed: Option<u64>,
    /// Sum of the result of the first launch.
    pub(super) sum: f64,
}

/// Measures and prints the figures as JSON.
pub(super) fn main(flags: &BenchSoftBodyFlags) -> Outcome {
    use_cores(flags.cores).map_err(Failure::work)?;
    let mut device = open(flags.device).map_err(|reason| Failure::work(format!("cannot measure: {reason}")))?;
    let time = if flags.quick { QUICK_KERNEL_TIME } else { KERNEL_TIME };
    let mut figures = BTreeMap::new();
    for work in &KERNEL_WORKS {
        let name = work.name.to_string_lossy().into_owned();
        let figure = measure(&mut *device, work, time).map_err(|reason| Failure::work(format!("{name}: {reason}")))?;
        figures.insert(name, figure);
    }
    let report = Report { device: device.name(), figures };
    let text = serde_json::to_string(&report).map_err(Failure::work)?;
    writeln!(io::stdout(), "{text}").map_err(Failure::work)?;
    Ok(ExitCode::SUCCESS)
}

fn open(device: SoftDevice) -> Result<Box<dyn Device>, String> {
    Ok(match device {
        SoftDevice::Softcuda => {
            let layout = Layout::find().map_err(|error| error.to_string())?;
            Box::new(Soft::open(&layout.soft())?)
        }
        SoftDevice::Opencl => Box::new(OpenCl::open()?),
    })
}

/// Restricts this process and its future threads to the first `cores` allowed cores.
fn use_cores(cores: usize) -> io::Result<()> {
    let allowed = sched_getaffinity(None)?;
    let mut chosen = CpuSet::new();
    (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).take(cores).for_each(|core| chosen.set(core));
    Ok(sched_setaffinity(None, &chosen)?)
}

/// Returns the best launch within `time`, after a first one that fills caches and creates threads.
fn measure(device: &mut dyn Device, work: &KernelWork, time: Duration) -> Result<Figure, String> {
    device.prepare(work)?;
    let executed_before = device.executed();
    device.run(work)?;
    let executed = device.executed().zip(executed_before).map(|(after, executed_before)| after - executed_before);
    let sum = work.sum(&device.result(work)?);
    let (started, mut best) = (Instant::now(), Duration::MAX);
    while started.elapsed() < time {
        let launched = Instant::now();
        device.run(work)?;
        best = best.min(launched.elapsed());
    }
    Ok(Figure { seconds: best.as_secs_f64(), executed, sum })
}

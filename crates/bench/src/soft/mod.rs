//! `katydid bench soft`: the speed of the software device on one core and on two, beside OpenCL on the same CPU.
//!
//! Each run is a process of its own that stays on its cores, and the runs take turns within a round. The best launch of all
//! rounds counts. The kernels are compiled CUDA C for softcuda, and the same in OpenCL C. Without an OpenCL that has a CPU
//! device, its columns are left out, with the reason.

mod body;
pub(super) mod cuda;
mod device;
mod opencl;
mod work;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::process::{Command, ExitCode, Stdio};

use serde::Serialize;

use crate::flags::{BenchFlags, BenchSoftBodyFlags, SoftDevice};
use body::{Figure, Report};
use katydid_cli_core::output::document;
use katydid_cli_core::output::failure::{Failure, Outcome, print_message};
use katydid_cli_core::output::table::{Align, Table};
use katydid_cli_core::output::terminal::Progress;
use work::{KERNEL_WORKS, KernelWork};

const SOFT_ROUNDS: u32 = 3;
const QUICK_SOFT_ROUNDS: u32 = 1;
/// Lanes of a warp: a warp instruction is this many lane instructions.
const WARP_LANES: f64 = 32.0;
/// Numbers of cores to measure.
const CORE_COUNTS: [usize; 2] = [1, 2];
/// Largest relative difference of results: sums of millions of rounded numbers, added in different orders.
const RELATIVE_TOLERANCE: f64 = 1e-3;

/// Runs the measuring program in this process.
pub(crate) fn body(flags: &BenchSoftBodyFlags) -> Outcome {
    body::main(flags)
}

/// Best figures by device, number of cores and kernel.
type Best = BTreeMap<(SoftDevice, usize), BTreeMap<String, Figure>>;

/// Runs `katydid bench soft`.
pub(super) fn main(flags: &BenchFlags) -> Outcome {
    let progress = Progress::on_stderr();
    let (mut best, mut opencl) = (Best::new(), None);
    let mut devices = vec![SoftDevice::Softcuda, SoftDevice::Opencl];
    for round in 1..=if flags.quick { QUICK_SOFT_ROUNDS } else { SOFT_ROUNDS } {
        for cores in CORE_COUNTS {
            for device in devices.clone() {
                progress.show(&format!("round {round}: {} on {cores} cores", device.title()));
                match run(device, cores, flags.quick) {
                    Ok(report) => {
                        opencl = (device == SoftDevice::Opencl).then(|| report.device.clone()).or(opencl);
                        keep(best.entry((device, cores)).or_default(), report);
                    }
                    Err(reason) if device == SoftDevice::Opencl => {
                        print_message(format!("no comparison with OpenCL: {reason}"));
                        devices.retain(|other| *other != device);
                    }
                    Err(reason) => return Err(Failure::work(reason)),
                }
            }
        }
    }
    drop(progress);
    let rows: Vec<Row> = KERNEL_WORKS.iter().map(|work| Row::new(work, &best)).collect();
    if let Some(row) = rows.iter().find(|row| !row.agrees) {
        return Err(Failure::work(format!("{}: softcuda and OpenCL disagree about the result", row.kernel)));
    }
    match flags.json {
        true => document::write(&Json { opencl, rows: &rows })?,
        false => write_table(&mut io::stdout().lock(), &rows, opencl.as_deref())?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Merges the better figure of each kernel.
fn keep(best: &mut BTreeMap<String, Figure>, report: Report) {
    for (name, figure) in report.figures {
        let best_figure = best.entry(name).or_insert(figure);
        best_figure.seconds = best_figure.seconds.min(figure.seconds);
    }
}

/// Runs the measuring program once, and passes its messages on. A missing OpenCL is no fault and stays silent.
fn run(device: SoftDevice, cores: usize, quick: bool) -> Result<Report, String> {
    let mut command = Command::new("/proc/self/exe");
    command.args(["bench-soft-body", device.name(), &cores.to_string()]).args(quick.then_some("--quick"));
    // PoCL makes a thread for each core of the machine, whatever cores it may use.
    command.env("POCL_MAX_PTHREAD_COUNT", cores.to_string());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = command.output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
    }
    serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())
}

/// Output of `--json`. Keys are only ever added.
#[derive(Serialize)]
struct Json<'a> {
    opencl: Option<String>,
    rows: &'a [Row],
}

/// One kernel on all devices.
#[derive(Debug, Serialize)]
struct Row {
    kernel: String,
    title: &'static str,
    /// Seconds of a launch on one and two cores.
    soft: [f64; 2],
    opencl: Option<[f64; 2]>,
    /// Units of work per second on one core.
    work_a_second: f64,
    /// Lane instructions per second on one core.
    lane_instructions_a_second: f64,
    /// Speed of two cores over one.
    scaling: f64,
    /// Speed over OpenCL, on one and two cores.
    ratio: Option<[f64; 2]>,
    #[serde(skip)]
    agrees: bool,
}

impl Row {
    fn new(work: &KernelWork, best: &Best) -> Self {
        let kernel = work.name.to_string_lossy().into_owned();
        let figure = |device, cores| best.get(&(device, cores)).and_then(|figures| figures.get(&kernel)).copied();
        let both = |device| Some([figure(device, CORE_COUNTS[0])?, figure(device, CORE_COUNTS[1])?]);
        let seconds = |figures: Option<[Figure; 2]>| figures.map(|figures| figures.map(|figure| figure.seconds));
        let (softcuda, opencl_runs) = (both(SoftDevice::Softcuda), both(SoftDevice::Opencl));
        let (soft, opencl) = (seconds(softcuda).unwrap_or([f64::NAN; 2]), seconds(opencl_runs));
        let executed = softcuda.and_then(|[one, _]| one.executed).unwrap_or(0) as f64;
        let agrees = softcuda.zip(opencl_runs).is_none_or(|(softcuda, opencl)| {
            let (softcuda, opencl) = (softcuda[0].sum, opencl[0].sum);
            (softcuda - opencl).abs() <= RELATIVE_TOLERANCE * softcuda.abs().max(opencl.abs())
        });
        Self {
            title: work.title,
            soft,
            opencl,
            work_a_second: work.amount / soft[0],
            lane_instructions_a_second: executed * WARP_LANES / soft[0],
            scaling: soft[0] / soft[1],
            ratio: opencl.map(|opencl| [opencl[0] / soft[0], opencl[1] / soft[1]]),
            agrees,
            kernel,
        }
    }
}

/// Writes the figures as a table.
fn write_table(out: &mut impl Write, rows: &[Row], opencl: Option<&str>) -> io::Result<()> {
    let mut columns = vec![("kernel, work", Align::Left)];
    let titles = ["1 core", "2 cores", "scaling", "G work/s", "G lane-insn/s"];
    columns.extend(titles.map(|title| (title, Align::Right)));
    if opencl.is_some() {
        columns.extend(["OpenCL 1", "OpenCL 2", "speed : OpenCL", "on 2"].map(|title| (title, Align::Right)));
    }
    let mut table = Table::new(&columns);
    let milliseconds = |seconds: f64| format!("{:.2} ms", seconds * 1e3);
    let ratio = |ratio: f64| format!("{ratio:.2}");
    for row in rows {
        let mut cells = vec![row.title.to_owned(), milliseconds(row.soft[0]), milliseconds(row.soft[1])];
        cells.extend([ratio(row.scaling), format!("{:.3}", row.work_a_second / 1e9)]);
        cells.push(ratio(row.lane_instructions_a_second / 1e9));
        cells.extend(row.opencl.iter().flatten().map(|seconds| milliseconds(*seconds)));
        cells.extend(row.ratio.iter().flatten().map(|value| ratio(*value)));
        table.row(cells);
    }
    table.write(out)?;
    writeln!(out, "\nG work/s and G lane-insn/s are of one core; a ratio above 1 means that softcuda is faster.")?;
    opencl.map_or(Ok(()), |name| writeln!(out, "OpenCL: {name}."))
}

//! `katydid bench opencl`: calls, copies and kernels of this machine's OpenCL, natively and through Katydid.
//!
//! Each run is a process of its own ([`mod@body`]), and the ways take turns within a round. The best of all rounds counts, since
//! every disturbance makes a run slower. All ways use the first device of the first platform.

mod api;
mod body;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::process::{Command, ExitCode, Stdio};

use katydid_transport::Address;
use serde::Serialize;

use self::body::Report;
use crate::flags::{Against, BenchFlags, BenchOpenclBodyFlags};
use crate::setup::wait_until_warm;
use katydid_cli_core::layout::{self, Layout};
use katydid_cli_core::output::document;
use katydid_cli_core::output::failure::{Failure, Outcome};
use katydid_cli_core::output::table::{Align, Table};
use katydid_cli_core::output::terminal::Progress;
use katydid_cli_core::server::address;
use katydid_cli_core::server::private_server::PrivateServer;

const OPENCL_ROUNDS: u32 = 5;
const QUICK_OPENCL_ROUNDS: u32 = 2;
/// Bytes of a large copy.
const LARGE_BYTES: f64 = (64 << 20) as f64;

/// One figure: its key, its title, and its unit.
const OPENCL_FIGURES: [(&str, &str, Unit); 12] = [
    ("enqueue", "an argument set, a launch enqueued", Unit::Microseconds),
    ("launch", "the same until it is done, many at a time", Unit::Microseconds),
    ("query", "the state of an event asked for", Unit::Microseconds),
    ("round_trip", "one launch and clFinish", Unit::Microseconds),
    ("write_small", "4 KiB written", Unit::Microseconds),
    ("read_small", "4 KiB read", Unit::Microseconds),
    ("map_small", "4 KiB mapped for reading", Unit::Microseconds),
    ("write", "64 MiB written", Unit::Bandwidth),
    ("read", "64 MiB read", Unit::Bandwidth),
    ("map", "64 MiB mapped for reading", Unit::Bandwidth),
    ("compute", "a kernel that computes", Unit::Microseconds),
    ("move", "a kernel that moves 128 MiB", Unit::Microseconds),
];

/// How a figure is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unit {
    Microseconds,
    /// Bytes per second, for [`LARGE_BYTES`] moved bytes.
    Bandwidth,
}

impl Unit {
    fn show(self, seconds: f64) -> String {
        match self {
            Self::Microseconds => format!("{:.2} us", seconds * 1e6),
            Self::Bandwidth => format!("{:.2} GB/s", LARGE_BYTES / seconds / 1e9),
        }
    }
}

/// A way to the device.
#[derive(Debug, Clone)]
struct DeviceWay {
    name: &'static str,
    /// The server; `None` for the native way.
    server: Option<Address>,
}

/// Runs the measuring program in this process.
pub(crate) fn body(flags: &BenchOpenclBodyFlags) -> Outcome {
    body::main(flags)
}

/// Runs `katydid bench opencl`.
pub(super) fn main(flags: &BenchFlags) -> Outcome {
    let layout = Layout::find().map_err(Failure::server)?;
    let loopback = Address::Tcp { host: "127.0.0.1".to_owned(), port: 0 };
    let server = PrivateServer::start_with(&flags.driver, &[loopback], None)?;
    let native = (flags.against == Against::Native).then_some(DeviceWay { name: "native", server: None });
    let through = ["shm", "tcp"].into_iter().zip(server.addresses());
    let through = through.map(|(name, address)| DeviceWay { name, server: Some(address.clone()) });
    let ways: Vec<DeviceWay> = native.into_iter().chain(through).collect();
    let mut best = Best::default();
    let progress = Progress::on_stderr();
    for round in 1..=if flags.quick { QUICK_OPENCL_ROUNDS } else { OPENCL_ROUNDS } {
        for way in &ways {
            progress.show(&format!("round {round}: {}", way.name));
            wait_until_warm(&server)?;
            best.keep(way.name, run(&layout, way, flags.quick)?);
        }
    }
    drop(progress);
    server.stop();
    match flags.json {
        true => document::write(&best)?,
        false => best.write_table(&mut io::stdout().lock(), &ways)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs the measuring program once. The native way finds the OpenCL that any program of this environment finds.
fn run(layout: &Layout, way: &DeviceWay, quick: bool) -> Result<Report, Failure> {
    let fail = |reason: String| Failure::work(format!("cannot measure {}: {reason}", way.name));
    let mut command = Command::new("/proc/self/exe");
    command.arg("bench-opencl-body").args(quick.then_some("--quick"));
    if let Some(server) = &way.server {
        // The vendors' file names Katydid's library, which the linker's search finds.
        command.env(layout::SEARCH_PATH_VARIABLE, layout.program_search());
        command.env(layout::VENDORS_VARIABLE, layout.vendors()).env_remove(layout::ICD_LIBRARIES_VARIABLE);
        command.env(address::SERVER_VARIABLE, server.to_string());
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    let output = command.output().map_err(|error| fail(error.to_string()))?;
    if !output.status.success() {
        return Err(fail(format!("the measuring program ended with {} (its message stands above)", output.status)));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| fail(error.to_string()))
}

/// The best figures, as `--json` writes them. Keys are only ever added.
#[derive(Debug, Default, Serialize)]
struct Best {
    device: String,
    /// Seconds, by way and key.
    ways: BTreeMap<&'static str, BTreeMap<String, f64>>,
}

impl Best {
    fn keep(&mut self, way: &'static str, report: Report) {
        self.device = report.device;
        let figures = self.ways.entry(way).or_default();
        for (key, seconds) in report.seconds {
            let best = figures.entry(key).or_insert(seconds);
            *best = best.min(seconds);
        }
    }

    fn figure(&self, way: &str, key: &str) -> Option<f64> {
        self.ways.get(way)?.get(key).copied()
    }

    /// Writes the figures as a table.
    fn write_table(&self, out: &mut impl Write, ways: &[DeviceWay]) -> io::Result<()> {
        let mut columns = vec![("", Align::Left)];
        columns.extend(ways.iter().map(|way| (way.name, Align::Right)));
        columns.push(("native : shm", Align::Right));
        let mut table = Table::new(&columns);
        for (key, title, unit) in OPENCL_FIGURES {
            let mut cells = vec![title.to_owned()];
            cells
                .extend(ways.iter().map(|way| self.figure(way.name, key).map_or_else(String::new, |it| unit.show(it))));
            let both = self.figure("native", key).zip(self.figure("shm", key));
            cells.push(both.map_or_else(String::new, |(native, shm)| format!("{:.2}", native / shm)));
            table.row(cells);
        }
        table.write(out)?;
        writeln!(out, "\n{}; the best of all rounds. A ratio above 1 means that shared memory is faster.", self.device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_of_all_rounds_is_shown_beside_the_native_one() {
        let report = |enqueue, write| Report {
            device: "a device".to_owned(),
            seconds: BTreeMap::from([("enqueue".to_owned(), enqueue), ("write".to_owned(), write)]),
        };
        let mut best = Best::default();
        best.keep("native", report(4e-6, 0.064));
        best.keep("shm", report(3e-6, 0.128));
        best.keep("shm", report(2e-6, 0.2));
        let ways = ["native", "shm"].map(|name| DeviceWay { name, server: None });
        let mut out = Vec::new();
        best.write_table(&mut out, &ways).unwrap();
        let text = String::from_utf8(out).unwrap();
        let line = |word: &str| text.lines().find(|line| line.contains(word)).unwrap().to_owned();
        assert!(line("enqueued").contains("4.00 us") && line("enqueued").ends_with("2.00 us          2.00"), "{text}");
        assert!(line("64 MiB written").contains("1.05 GB/s") && line("64 MiB written").contains("0.52 GB/s"), "{text}");
    }
}

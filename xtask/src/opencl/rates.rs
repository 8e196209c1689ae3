//! Rates of third-party programs that measure a device, natively and through Katydid over shared memory, in turns. They are
//! clpeak's kernels and launches, and hashcat's benchmark. Each figure is the median of all rounds.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use katydid_tests::measured::median;
use katydid_tests::opencl as programs;
use katydid_tests::paths::Paths;
use katydid_tests::program;
use katydid_tests::server::Server;
use katydid_tests::way::Way;
use serde_json::{Value, json};

use crate::opencl::third_party;
use crate::output::{line, step};
use crate::tree::Tree;

/// Numbers of rounds: few on a GPU machine, whose time is short, and many here, where other work disturbs.
pub(crate) const FEW_ROUNDS: usize = 3;
const MANY_ROUNDS: usize = 7;
/// Time limit of one run. PoCL compiles each program for a processor that is shared with other work.
const RUN_TIMEOUT: Duration = Duration::from_secs(240);
/// Section of the figure that is better when it is smaller.
const LATENCY_SECTION: &str = "latency";

/// A program that measures, and how its output is read.
struct Subject {
    name: &'static str,
    /// Path below the folder of all programs.
    path: &'static str,
    /// Arguments that select the figures. Copies are part of `katydid bench opencl`.
    arguments: &'static [&'static str],
    /// Further arguments on PoCL: no search for the best size of launches, which takes minutes on processors. A launch then takes
    /// some 10 ms.
    of_processors: &'static [&'static str],
    read: fn(&str) -> BTreeMap<String, f64>,
}

/// Programs that are measured. hashcat's backend is OpenCL, even if CUDA is available.
const RATE_SUBJECTS: [Subject; 2] = [
    Subject {
        name: "clpeak",
        path: "root/usr/bin/clpeak",
        arguments: &["--global-bandwidth", "--compute-sp", "--compute-integer", "--kernel-latency"],
        of_processors: &[],
        read: figures,
    },
    Subject {
        name: "hashcat",
        path: "hashcat/hashcat",
        arguments: &["--benchmark", "-m", "0", "--force", "--machine-readable", "--backend-ignore-cuda"],
        of_processors: &["-n", "1024", "-u", "1024", "-T", "1"],
        read: speeds,
    },
];

/// Folder of the programs in a pack.
pub(crate) const PACKED_FOLDER: &str = "others";

/// Returns the folder of a pack's programs, which has the same layout as the folder that they were fetched to.
pub(crate) fn packed(paths: &Paths) -> PathBuf {
    paths.opencl().join(PACKED_FOLDER)
}

/// Files and folders for a pack, below the folder that they were fetched to. Of hashcat's modes, it has only the measured one,
/// with the files that all modes need.
pub(crate) const PACKED_FILES: [&str; 8] = [
    "root/usr/bin/clpeak",
    "root/usr/lib/x86_64-linux-gnu/libminizip.so.1",
    "root/usr/lib/x86_64-linux-gnu/libxxhash.so.0",
    "hashcat/hashcat",
    "hashcat/hashcat.hcstat2",
    "hashcat/OpenCL",
    "hashcat/tunings",
    "hashcat/modules/module_00000.so",
];

/// Measures with the programs below `folder`, and prints each figure with its ratio to the native one.
pub(crate) fn measure(paths: &Paths, server: &Server, folder: &Path, rounds: usize) -> Result<Value> {
    let [shm, _] = Way::through(server);
    let ways = [Way::Direct { name: "native", folder: None }, shm];
    let mut report = json!({});
    for subject in &RATE_SUBJECTS {
        let program = folder.join(subject.path);
        ensure!(program.exists(), "there is no {} in {}", subject.name, folder.display());
        let mut rates = [BTreeMap::<String, Vec<f64>>::new(), BTreeMap::new()];
        for round in 0..rounds {
            // A machine that becomes slower or faster as it runs affects both ways.
            for index in if round % 2 == 0 { [0, 1] } else { [1, 0] } {
                let figures = run(paths, &ways[index], folder, subject)?;
                figures.into_iter().for_each(|(key, figure)| rates[index].entry(key).or_default().push(figure));
            }
        }
        let spread: BTreeMap<String, f64> =
            rates[0].iter().map(|(key, figures)| (key.clone(), spread(figures))).collect();
        let [native, shm] = rates.map(medians);
        for (key, figure) in &native {
            let of = shm.get(key).map_or(0.0, |other| ratio(key, *other, *figure));
            let differs = spread.get(key).copied().unwrap_or(0.0);
            let name = subject.name;
            line(&format!("{name}: {key:<52} {figure:>16.2} native (differs by {differs:.3}), {of:.3} of it over shm"));
        }
        report[subject.name] = json!({ "native": native, "shm": shm, "native_differs": spread });
    }
    Ok(report)
}

/// Returns the ratio of a figure to the native one; a value above 1 is better.
fn ratio(key: &str, figure: f64, native: f64) -> f64 {
    if key.contains(LATENCY_SECTION) { native / figure } else { figure / native }
}

/// Returns how much native runs differ from each other, relative to the largest: no ratio is more precise than that.
fn spread(figures: &[f64]) -> f64 {
    let largest = figures.iter().copied().fold(0.0, f64::max);
    let smallest = figures.iter().copied().fold(largest, f64::min);
    if largest > 0.0 { (largest - smallest) / largest } else { 0.0 }
}

fn medians(rates: BTreeMap<String, Vec<f64>>) -> BTreeMap<String, f64> {
    rates.into_iter().filter_map(|(key, figures)| Some((key, median(figures)?))).collect()
}

fn run(paths: &Paths, way: &Way, folder: &Path, subject: &Subject) -> Result<BTreeMap<String, f64>> {
    let mut command: Command = way.command(paths, &folder.join(subject.path));
    command.args(subject.arguments);
    if programs::is_pocl(paths) {
        command.args(subject.of_processors);
    }
    let own = folder.join("root/usr/lib/x86_64-linux-gnu");
    let variables = match way {
        Way::Direct { .. } => programs::driver(paths),
        _ => vec![("LD_LIBRARY_PATH", programs::libraries(paths).into())],
    };
    for (name, value) in variables {
        let value = if name == "LD_LIBRARY_PATH" { with(&value, &own)? } else { value };
        command.env(name, value);
    }
    let outcome = program::run(&mut command, RUN_TIMEOUT)?;
    ensure!(outcome.status.success(), "{way}: {}\n{}{}", outcome.ending(), outcome.text(), outcome.errors());
    let figures = (subject.read)(&outcome.text());
    (!figures.is_empty()).then_some(figures).with_context(|| format!("no figures: {}", outcome.text()))
}

/// Returns a list of folders with one more.
fn with(folders: &OsString, own: &Path) -> Result<OsString> {
    let folders = env::split_paths(folders).chain([own.to_owned()]);
    env::join_paths(folders).context("a folder with a colon in its name")
}

/// Returns numbers by section and name: `name : number`, below a line without a colon. Only the first device is read.
fn figures(text: &str) -> BTreeMap<String, f64> {
    let (mut figures, mut section) = (BTreeMap::new(), String::new());
    for line in text.lines().map(str::trim) {
        let Some((name, value)) = line.split_once(" : ") else {
            line.clone_into(&mut section);
            continue;
        };
        let number = value.split_whitespace().next().and_then(|word| word.parse::<f64>().ok());
        let is_fact = ["Compute units", "Clock frequency", "Driver version"].contains(&name.trim());
        if let (Some(number), false) = (number, is_fact) {
            figures.entry(format!("{section}: {}", name.trim())).or_insert(number);
        }
    }
    figures
}

/// Returns hashes per second of the first device by mode: `device:mode:clock:clock:milliseconds:speed`. The milliseconds are
/// those of a launch, by the device's own clock: another length means that hashcat has chosen another size.
fn speeds(text: &str) -> BTreeMap<String, f64> {
    let mut speeds = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let parts: Vec<&str> = line.trim().split(':').collect();
        if let [_device, mode, _, _, launch, speed] = parts[..]
            && let (Ok(launch), Ok(speed)) = (launch.parse(), speed.parse())
        {
            speeds.entry(format!("mode {mode}, hashes a second")).or_insert(speed);
            speeds.entry(format!("mode {mode}, {LATENCY_SECTION} of a launch, ms")).or_insert(launch);
        }
    }
    speeds
}

/// Measures from a checkout, on PoCL.
pub(crate) fn run_here(tree: &Tree) -> Result<ExitCode> {
    third_party::fetch(tree)?;
    let paths = programs::paths(&tree.paths());
    let server = Server::start_with(&paths, "soft", &[], &programs::driver(&paths))?;
    step("clpeak and hashcat on PoCL, natively and over shared memory");
    let all = measure(&paths, &server, &third_party::folder(tree), MANY_ROUNDS)?;
    line(&all.to_string());
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_with_their_sections() {
        let text = "\nPlatform: One\n  Device: Two\n    Driver version  : 3.1 (Linux x64)\n    Compute units   : 2\n\n    \
                    Global memory bandwidth (GBPS)\n      float   : 12.50\n      float2  : 13\n\n    No half precision support! Skipped\n\n    \
                    Kernel launch latency : 4.75 us\n";
        let read = figures(text);
        let of = |key: &str| read.get(key).copied();
        assert_eq!(of("Global memory bandwidth (GBPS): float"), Some(12.5));
        assert_eq!(of("Global memory bandwidth (GBPS): float2"), Some(13.0));
        assert_eq!((of(": Kernel launch latency"), read.len()), (Some(4.75), 3));
    }

    #[test]
    fn speeds_are_read_by_mode() {
        let text = "# version: v6.2.6\n# option: --force\n1:0:1980:2619:57.44:23511500000\n2:0:0:0:1.0:5\n";
        let of = [("mode 0, hashes a second", 23_511_500_000.0), ("mode 0, latency of a launch, ms", 57.44)];
        assert_eq!(speeds(text), of.map(|(key, figure)| (key.to_owned(), figure)).into());
    }

    #[test]
    fn medians_are_of_each_figure_and_ratios_above_one_are_better() {
        let rates = BTreeMap::from([("a".to_owned(), vec![3.0, 1.0, 2.0])]);
        assert_eq!((spread(&rates["a"]), spread(&[])), (2.0 / 3.0, 0.0));
        assert_eq!(medians(rates)["a"], 2.0);
        assert_eq!((ratio("Kernel launch latency", 2.0, 4.0), ratio("float", 2.0, 4.0)), (2.0, 0.5));
    }
}

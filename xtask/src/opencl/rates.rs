//! What programs of other people that measure a device reach, natively and through Katydid over shared memory, in turns: clpeak's
//! kernels and launches, hashcat's benchmark. Of each figure the median of all rounds counts.

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

/// Rounds on a GPU machine, whose time is short, and here, where other work disturbs.
pub(crate) const FEW_ROUNDS: usize = 3;
const MANY_ROUNDS: usize = 7;
/// Of one run. PoCL compiles each program for a processor that others use too.
const RUN_TIMEOUT: Duration = Duration::from_secs(240);
/// The section of the figure that is better when it is smaller.
const LATENCY_SECTION: &str = "latency";

/// A program that measures, and how its figures are read.
struct Subject {
    name: &'static str,
    /// Below the folder of all.
    path: &'static str,
    /// What is measured. Copies are part of `katydid bench opencl`.
    arguments: &'static [&'static str],
    /// On PoCL besides: no search for the best size of launches, in which processors spend minutes. One takes some 10 ms so.
    of_processors: &'static [&'static str],
    read: fn(&str) -> BTreeMap<String, f64>,
}

/// What is measured. hashcat's backend is OpenCL, also where CUDA is.
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

/// Their folder in a pack.
pub(crate) const PACKED_FOLDER: &str = "others";

/// Where the programs of a pack lie, as they do below the folder that they were fetched to.
pub(crate) fn packed(paths: &Paths) -> PathBuf {
    paths.opencl().join(PACKED_FOLDER)
}

/// What travels in a pack: files and folders below the folder that they were fetched to. Of hashcat's modes that one which is
/// measured, with what all need.
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

/// Measures with the programs below `folder`, and says each figure with its ratio to the native one.
pub(crate) fn measure(paths: &Paths, server: &Server, folder: &Path, rounds: usize) -> Result<Value> {
    let [shm, _] = Way::through(server);
    let ways = [Way::Direct { name: "native", folder: None }, shm];
    let mut report = json!({});
    for subject in &RATE_SUBJECTS {
        let program = folder.join(subject.path);
        ensure!(program.exists(), "there is no {} in {}", subject.name, folder.display());
        let mut rates = [BTreeMap::<String, Vec<f64>>::new(), BTreeMap::new()];
        for round in 0..rounds {
            // A machine that becomes slower as it runs, or faster, does so for both.
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

/// How much of the native figure another one is; above 1: better.
fn ratio(key: &str, figure: f64, native: f64) -> f64 {
    if key.contains(LATENCY_SECTION) { native / figure } else { figure / native }
}

/// By how much native runs differ among each other, as a part of the largest: no ratio says more than that.
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

/// A list of folders with one more.
fn with(folders: &OsString, own: &Path) -> Result<OsString> {
    let folders = env::split_paths(folders).chain([own.to_owned()]);
    env::join_paths(folders).context("a folder with a colon in its name")
}

/// Numbers by section and name: `name : number`, below a line without a colon. Only those of the first device are read.
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

/// Hashes a second by mode, of the first device: `device:mode:clock:clock:milliseconds:speed`. The milliseconds are those of a launch,
/// by the device's own clock: launches of another length are of another size, which hashcat has chosen.
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

/// Measures out of a checkout, on PoCL.
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

//! `gpu-test frameworks`: programs of PyTorch, JAX, CuPy, Triton, numba and others, natively and through Katydid.
//!
//! Several items run at a time, and those about time run alone at the end. Each result is written as it comes, so that no result
//! is lost if the machine is taken away. On a machine without a GPU `--driver soft` runs what softcuda can run.

use std::env;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use katydid_tests::frameworks::trial::Fixture;
use katydid_tests::frameworks::{self, Item, ItemReport, Verdict};
use katydid_tests::paths::Paths;
use katydid_tests::server::Server;
use katydid_tests::way::Way;
use serde_json::{Value, json};

use crate::gpu::machine;
use crate::output::{line, step};
use crate::tables::markdown::{Column, markdown};
use crate::tables::reports;
use crate::tree::Tree;
use crate::{dist, jobs};

/// Default number of items at a time, less on a small machine: more would wait for each other on one GPU.
const MAX_JOBS: usize = 8;
/// Name of the driver whose device is the CPU.
const SOFT_DRIVER: &str = "soft";

/// What to run, and where.
#[derive(Debug, clap::Args)]
#[command(
    next_help_heading = "Options of `frameworks`; --only of `apps`, `checkpoint`, `figures` and `opencl` too, --ways and --jobs of `apps`, and of `programs` the last three"
)]
pub(crate) struct Options {
    /// Items or whole families of them, such as torch.training,cupy; programs; steps. All unless given.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) only: Vec<String>,
    /// Ways; frameworks run natively too, whatever is said. All unless given, which for `apps` are native,private,shm,tcp.
    #[arg(long, value_enum, value_delimiter = ',')]
    ways: Vec<WayName>,
    /// Everything ends after this many seconds; the report lists what was not begun.
    #[arg(long, value_name = "SECONDS", default_value_t = 560)]
    pub(crate) within: u64,
    /// Items at a time; with one, times can be compared, and programs that take all memory meet no other: `apps` has one unless told.
    #[arg(long, value_name = "N")]
    pub(crate) jobs: Option<NonZero<usize>>,
    /// The Python that has the frameworks: `python3`, or in a checkout the one of `cargo xtask setup`.
    #[arg(long, value_name = "PATH")]
    pub(crate) python: Option<PathBuf>,
    /// Driver library of all ways: auto or soft.
    #[arg(long, value_name = "DRIVER", default_value = "auto", value_parser = ["auto", SOFT_DRIVER])]
    pub(crate) driver: String,
}

impl Options {
    /// Returns whether the device is the CPU.
    pub(crate) fn is_soft(&self) -> bool {
        self.driver == SOFT_DRIVER
    }

    /// Returns the ways that were named, or else `usual`.
    pub(crate) fn ways_or(&self, usual: &[WayName]) -> Vec<WayName> {
        if self.ways.is_empty() { usual.to_vec() } else { self.ways.clone() }
    }
}

/// A way by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum WayName {
    /// Without Katydid.
    Native,
    /// A private server each.
    Private,
    /// Shared memory.
    Shm,
    /// Frames on a unix socket.
    Unix,
    /// TCP of loopback.
    Tcp,
}

impl WayName {
    /// Returns the way for a server, with the driver for ways that have none.
    pub(crate) fn way(self, server: &Server, driver: &str) -> Way {
        let [shm, tcp] = Way::through(server);
        match self {
            Self::Native => Way::Direct { name: "native", folder: None },
            Self::Private => Way::Private { driver: driver.to_owned() },
            Self::Shm => shm,
            Self::Unix => Way::as_stream(server),
            Self::Tcp => tcp,
        }
    }
}

/// Runs the items from a checkout, after building their prerequisites.
pub(crate) fn run_here(tree: &Tree, options: &Options) -> Result<ExitCode> {
    dist::run(tree, false)?;
    let report = env::var_os("OUT").map_or_else(|| tree.target.join("frameworks"), PathBuf::from);
    fs::create_dir_all(&report).with_context(|| format!("cannot make {}", report.display()))?;
    let paths = tree.paths();
    let python = options.python.clone().unwrap_or_else(|| frameworks::python(&paths));
    let variables = frameworks::toolkit(&paths);
    run(paths, &report, python, variables, options)
}

/// Runs the items from a pack.
pub(crate) fn run_packed(folder: &Path, report: &Path, options: &Options) -> Result<ExitCode> {
    let paths = Paths::of_pack(folder);
    let python = options.python.clone().unwrap_or_else(|| frameworks::python(&paths));
    run(paths, report, python, Vec::new(), options)
}

fn run(
    paths: Paths,
    report: &Path,
    python: PathBuf,
    variables: Vec<(String, String)>,
    options: &Options,
) -> Result<ExitCode> {
    let deadline = Some(Instant::now() + Duration::from_secs(options.within));
    let is_soft = options.is_soft();
    let is_wanted = |item: &Item| item.is_among(&options.only) && (item.is_soft || !is_soft);
    let items: Vec<Item> = frameworks::items()?.into_iter().filter(is_wanted).collect();
    if items.is_empty() {
        bail!("no item of tests/frameworks/items.txt is named so and can run with the driver {}", options.driver);
    }
    let machine = machine::describe();
    let server = Server::start(&paths, &options.driver, &[])?;
    let ways = options.ways_or(&[WayName::Shm, WayName::Unix, WayName::Tcp]);
    let beside = ways.into_iter().filter(|way| *way != WayName::Native);
    let ways = beside.map(|way| way.way(&server, &options.driver)).collect();
    let native = Way::Direct { name: "native", folder: is_soft.then(|| paths.soft()) };
    let driver = options.driver.clone();
    let fixture = Fixture { paths, python, native, ways, driver, variables, deadline };
    step(&format!("{} items, {} ways beside the native one", items.len(), fixture.ways.len()));
    let (timed, others): (Vec<Item>, Vec<Item>) = items.into_iter().partition(Item::is_timed);
    let journal = ResultJournal::begin(report, &machine)?;
    let mut reports = run_all(&fixture, others, at_a_time(options), &journal);
    reports.extend(run_all(&fixture, timed, 1, &journal));
    fs::write(report.join("server.log"), server.log()).context("cannot write to the report")?;
    let text = table(&machine, &fixture, &reports)?;
    fs::write(report.join("frameworks.md"), &text).context("cannot write to the report")?;
    line(&text);
    let bad = reports.iter().filter(|reports| reports.verdict.is_bad()).count();
    let passed = reports.iter().filter(|reports| reports.verdict == Verdict::Passed).count();
    line(&format!("{passed} passed, {bad} failed or differing, {} others", reports.len() - passed - bad));
    Ok(if bad == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn at_a_time(options: &Options) -> usize {
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    options.jobs.map_or((cores / 2).clamp(1, MAX_JOBS), NonZero::get)
}

/// Journal of the results: a line of JSON for each, as it comes.
struct ResultJournal(Mutex<File>);

impl ResultJournal {
    fn begin(report: &Path, machine: &Value) -> Result<Self> {
        let path = report.join("frameworks.jsonl");
        let mut file = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
        writeln!(file, "{machine}").with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self(Mutex::new(file)))
    }

    fn report_item(&self, report: &ItemReport) {
        let reason = report.verdict.reason().map_or(String::new(), |reason| format!(": {reason}"));
        line(&format!(
            "{} {} ... {}{reason} ({:.1} s)",
            report.item,
            report.way,
            report.verdict.word(),
            report.seconds
        ));
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = writeln!(file, "{}", report.as_json()) {
            line(&format!("a result could not be written: {error}"));
        }
    }
}

/// Runs all items, several at a time; results come back in the order of the list.
fn run_all(fixture: &Fixture, items: Vec<Item>, at_a_time: usize, journal: &ResultJournal) -> Vec<ItemReport> {
    let run = |item: Item| {
        let results = Mutex::new(Vec::new());
        fixture.run(&item, &|result| {
            journal.report_item(&result);
            results.lock().unwrap_or_else(PoisonError::into_inner).push(result);
        });
        results.into_inner().unwrap_or_else(PoisonError::into_inner)
    };
    jobs::each(items, at_a_time, run).into_iter().flatten().collect()
}

/// Returns a table with a row for each item and a column for each way, followed by every reason.
fn table(machine: &Value, fixture: &Fixture, reports: &[ItemReport]) -> Result<String> {
    let ways: Vec<String> = [&fixture.native].into_iter().chain(&fixture.ways).map(ToString::to_string).collect();
    let mut items: Vec<&str> = reports.iter().map(|reports| reports.item.as_str()).collect();
    items.dedup();
    let rows = items.into_iter().map(|item| {
        let of = |way: &String| reports.iter().find(|reports| reports.item == item && reports.way == *way);
        let native = of(&ways[0]);
        let versions = native.map(|reports| &reports.versions[..]).unwrap_or_default();
        let versions: Vec<String> = versions.iter().map(|(name, is)| format!("{name} {is}")).collect();
        let mut row = json!({"item": item, "versions": versions.join(", ")});
        for way in &ways {
            row[way] = of(way).map(|reports| cell(reports, native)).into();
        }
        row
    });
    let mut columns = vec![Column::left_aligned("item", "item"), Column::left_aligned("versions", "versions")];
    columns.extend(ways.iter().map(|way| Column::left_aligned(way, way)));
    let mut out = reports::table(machine, "machine")? + "\n" + &markdown(&columns, &rows.collect::<Vec<_>>());
    for reports in reports {
        if let Some(reason) = reports.verdict.reason() {
            out += &format!("\n{} {}, {}: {reason}\n", reports.item, reports.way, reports.verdict.word());
        }
    }
    Ok(out)
}

/// Returns the verdict of an item, its seconds, and its own times beside the native ones.
fn cell(report: &ItemReport, native: Option<&ItemReport>) -> String {
    if report.verdict != Verdict::Passed {
        return format!("**{}**", report.verdict.word());
    }
    let mut out = format!("{:.1} s", report.seconds);
    for (name, seconds) in report.times.iter().filter(|(name, _)| name == "step" || name == "first_call") {
        let beside = native.and_then(|native| native.times.iter().find(|(other, _)| other == name));
        let ratio = beside.map_or(String::new(), |(_, native)| format!(" = {:.2}×", seconds / native));
        let _ = write!(out, ", {name} {:.2} ms{ratio}", seconds * 1e3);
    }
    out
}

//! Programs of frameworks. Each item of `tests/frameworks/items.txt` runs undisturbed, then with checkpoints at random frames,
//! then restored from each checkpoint. Each run must print what the undisturbed one printed. A training with PyTorch also runs,
//! with checkpoints at steps of its own.
//!
//! The items cover many things; most of their length is that of their libraries, not of their programs. The list leaves out the
//! frameworks' own test suites, which are a thousand small cases in one program. A checkpoint would meet few of these. Items
//! that are about time alone are left out too.

use std::cell::Cell;
use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use katydid_tests::frameworks::item_result::ItemResults;
use katydid_tests::frameworks::{ABSENT_STATUS, Item, items, python, toolkit};
use katydid_tests::job::{CHECKPOINTED_EXIT_STATUS, Job, Plan};
use katydid_tests::paths::{Paths, driver_under_test};
use katydid_tests::program::{self, Outcome};
use katydid_tests::trial;
use katydid_tests::watch::until;
use katydid_tests::way::Way;
use libtest_mimic::{Completion, Failed, Trial};

use crate::programs::{ExpectedOutput, Run, Start, TakenCheckpoint, choice, show};
use crate::stage::{CHECKPOINT_TIMEOUT, Stage, WAY_NAMES, continues, describe};

/// The word in place of the variant in the names of items' tests.
pub(crate) const FRAMEWORK_VARIANT: &str = "framework";
/// Families of items that every test run includes: `cargo xtask setup` fetches what they need.
const FETCHED_PREFIXES: [&str; 3] = ["core.", "cupy.", "numba."];
/// The least time limit of a program, enough on a busy machine too.
const MIN_TEST_TIME: Duration = Duration::from_secs(240);
/// Items that are left out, with the reasons.
const LEFT_OUT: [&str; 3] = [
    // It holds half of a GPU's memory, which makes an image of 70 GB.
    "jax.memory_preallocated",
    // They query NVML and have no session.
    "nvml.monitor",
    "nvml.smi",
];
/// A program that sends fewer frames would end before a checkpoint.
const MIN_POINTS: u64 = 8;
/// Variables that name the folders in which frameworks keep compiled code. Each run has its own folders. So each run sends as
/// many frames as the one before, and a restored program finds its files unchanged.
const CACHE_VARIABLES: [&str; 5] =
    ["CUPY_CACHE_DIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "NUMBA_CACHE_DIR", "XDG_CACHE_HOME"];

/// Number of steps of the training, and the steps after which the test asks for a checkpoint; it happens a little later.
const STEP_COUNT: &str = "150";
const CHECKPOINT_STEPS: [&str; 2] = ["step 40 ", "step 90 "];
const PYTHON_PROGRAM: &str = "python3";

/// Returns all trials. If the list cannot be read, one of them fails.
pub(crate) fn trials(paths: &Paths) -> Vec<Trial> {
    let mut trials = trainings(paths);
    match items() {
        Ok(items) => trials.extend(of_items(paths, &items)),
        Err(error) => trials.push(trial::test("items", move || Err(error.to_string().into()))),
    }
    trials
}

/// Whether every test run includes an item.
pub(crate) fn is_everywhere(item: &str) -> bool {
    FETCHED_PREFIXES.iter().any(|family| item.starts_with(family))
}

/// Returns a test for each item, on one way or on all; with softcuda, only of items that are meaningful there.
fn of_items(paths: &Paths, items: &[Item]) -> Vec<Trial> {
    let is_soft = driver_under_test() == "soft";
    let all = env::var("KATYDID_CHECKPOINT_WAYS").is_ok_and(|ways| ways == "all");
    let is_left_out = |item: &Item| item.is_suite() || item.is_timed() || LEFT_OUT.contains(&item.name.as_str());
    let has_sense = |item: &&Item| (item.is_soft || !is_soft) && !is_left_out(item);
    let mut trials = Vec::new();
    for (index, item) in items.iter().filter(has_sense).enumerate() {
        let ways = if all { &WAY_NAMES[..] } else { &WAY_NAMES[index % WAY_NAMES.len()..][..1] };
        trials.extend(ways.iter().map(|&way| {
            let (paths, item) = (paths.clone(), item.clone());
            trial::ignorable_test(format!("{way}::{FRAMEWORK_VARIANT}::{}", item.name), move || {
                run_one(&paths, &item, way)
            })
        }));
    }
    trials
}

/// The output of an item in an undisturbed run.
pub(crate) struct UndisturbedRun<'a> {
    start: Start<'a, 'a>,
    results: ItemResults,
    /// The text on standard error, for messages.
    errors: String,
    limit: Duration,
}

/// The result of the first run.
enum FirstRun<'a> {
    Said(UndisturbedRun<'a>),
    /// Something that the item needs is missing; the item's reason.
    Absent(String),
}

impl<'a> UndisturbedRun<'a> {
    fn run(start: Start<'a, 'a>, limit: Duration) -> Result<FirstRun<'a>> {
        let outcome = start(&Plan::default())?.finish(limit)?;
        if outcome.status.code() == Some(ABSENT_STATUS) {
            return Ok(FirstRun::Absent(outcome.errors().lines().last().unwrap_or_default().to_owned()));
        }
        ensure!(outcome.status.success(), "undisturbed: {}", describe(&outcome));
        let results = ItemResults::of(&outcome.text());
        ensure!(results.count() > 0, "it showed no result: {}", describe(&outcome));
        Ok(FirstRun::Said(Self { start, results, errors: outcome.errors(), limit }))
    }

    /// Checks that another run printed the same, except where two undisturbed runs differ.
    pub(crate) fn agrees(&self, text: &str) -> Result<()> {
        let results = ItemResults::of(text);
        let mut differing = self.results.differences(&results);
        if differing.is_empty() {
            return Ok(());
        }
        let again = (self.start)(&Plan::default())?.finish(self.limit)?;
        let unsteady = self.results.differences(&ItemResults::of(&again.text()));
        differing.retain(|name| !unsteady.contains(name));
        println!("differs from one undisturbed run to the next: {unsteady:?}");
        let difference =
            |name: &String| format!("{name}: {} undisturbed, {} here", self.results.text(name), results.text(name));
        ensure!(differing.is_empty(), "{}\n{text}", differing.iter().map(difference).collect::<Vec<_>>().join("; "));
        Ok(())
    }

    /// Checks that a restored program printed the rest. Its other threads and processes may have written during the dump, so
    /// the length of the first part is not exactly known. The rest must fit in one place.
    pub(crate) fn is_continued(&self, checkpoint: &TakenCheckpoint, restored: &Outcome) -> Result<()> {
        ensure!(restored.status.success(), "the restored program: {}", describe(restored));
        let (before, after) = checkpoint.written;
        let ends = checkpoint.printed.match_indices('\n').map(|(at, _)| at + 1);
        let paths = [before, after].into_iter().chain(ends.filter(|end| (before..after).contains(end)));
        let wholes: Vec<String> = paths
            .map(|at| format!("{}{}", checkpoint.printed.get(..at).unwrap_or_default(), restored.text()))
            .collect();
        if wholes.iter().any(|whole| self.results.differences(&ItemResults::of(whole)).is_empty()) {
            return Ok(());
        }
        self.agrees(&wholes[0]).with_context(|| format!("the restored program: {}", describe(restored)))
    }
}

fn run_one(paths: &Paths, item: &Item, way: &str) -> Result<Completion, Failed> {
    checked(paths, item, way).map_err(show)
}

fn checked(paths: &Paths, item: &Item, way: &str) -> Result<Completion> {
    let stage = Stage::new(paths, way)?;
    let arguments = item.arguments(paths);
    let arguments = arguments.each_ref().map(String::as_str);
    let (driver, python, runs) = (driver_under_test(), python(paths), Cell::new(0));
    let start = |plan: &Plan<'_>| {
        let caches = stage.image(&format!("caches-{}", runs.replace(runs.get() + 1)));
        fs::create_dir(&caches)?;
        let further = CACHE_VARIABLES.map(|name| (name.to_owned(), caches.join(name).display().to_string()));
        let own: Vec<(String, String)> = toolkit(paths).into_iter().chain(further).collect();
        let own = own.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let variables: Vec<(&str, &str)> = Item::variables(&driver).into_iter().chain(own).collect();
        let plan = Plan { arguments: &arguments, variables: &variables, ..*plan };
        Ok(Job::start(paths, &stage.home, &stage.way, "job", &python, &plan)?)
    };
    let limit = MIN_TEST_TIME.max(Duration::from_secs(item.seconds));
    let first = UndisturbedRun::run(&start, limit).with_context(|| stage.server.log())?;
    let undisturbed = match first {
        FirstRun::Said(undisturbed) => undisturbed,
        FirstRun::Absent(reason) => return Ok(Completion::ignored_with(reason)),
    };
    let frames = most_calls(&stage).with_context(|| undisturbed.errors.clone())?;
    if frames < MIN_POINTS {
        return Ok(Completion::ignored_with(format!("it sends {frames} frames")));
    }
    let choice = choice(&format!("{way}{}", item.name))?;
    let expected = ExpectedOutput::ItemResults(&undisturbed);
    let run = Run::with_frame_count(&item.name, expected, choice, frames, limit);
    run.through(&stage, &start).with_context(|| format!("of {frames} frames"))?;
    Ok(Completion::Completed)
}

/// Returns the number of calls of the ended session that made the most.
pub(crate) fn most_calls(stage: &Stage) -> Result<u64> {
    let is_told = |log: &str| {
        let began = log.matches(" began: ").count();
        began > 0 && began == log.matches(") ended").count()
    };
    until("the server tells of the end of each session", || is_told(&stage.server.log()))?;
    let log = stage.server.log();
    let ends = log.lines().filter_map(|line| line.split_once(") ended after ")?.1.split_once(" calls"));
    let most = ends.filter_map(|(calls, _)| calls.parse().ok()).max();
    most.with_context(|| format!("it made no calls; the server says:\n{log}"))
}

/// Returns a test for each way; none on softcuda, which cannot run PyTorch's machine code.
fn trainings(paths: &Paths) -> Vec<Trial> {
    if driver_under_test() == "soft" {
        return Vec::new();
    }
    let has_torch = has_torch();
    if !has_torch {
        println!("no training with PyTorch is tested: {PYTHON_PROGRAM} here has none");
    }
    let trial = |way: &'static str| {
        let paths = paths.clone();
        let training = move || training(&paths, way).map_err(|error| format!("{error:#}").into());
        trial::test(format!("{way}::a_training_with_pytorch_goes_on_with_equal_losses"), training)
            .with_ignored_flag(!has_torch)
    };
    WAY_NAMES.map(trial).into()
}

fn has_torch() -> bool {
    let tried = Command::new(PYTHON_PROGRAM).args(["-c", "import torch; assert torch.version.cuda"]).output();
    tried.is_ok_and(|tried| tried.status.success())
}

fn training(paths: &Paths, way: &str) -> Result<()> {
    let script = paths.frameworks.join("torch_training.py");
    let arguments = [script.to_str().context("a path that is not text")?, STEP_COUNT, "64"];
    let native = Way::Direct { name: "native", folder: None };
    let native = program::run(native.command(paths, Path::new(PYTHON_PROGRAM)).args(arguments), CHECKPOINT_TIMEOUT)?;
    ensure!(native.status.success(), "natively: {}", describe(&native));
    let stage = Stage::new(paths, way)?;
    let plan = Plan { arguments: &arguments, ..Plan::default() };
    let mut job = Job::start(&stage.paths, &stage.home, &stage.way, "training", Path::new(PYTHON_PROGRAM), &plan)?;
    let mut checkpoints = Vec::new();
    for (index, point) in CHECKPOINT_STEPS.into_iter().enumerate() {
        job.wait_for(point)?;
        let before = job.output_so_far()?.len();
        let is_last = index + 1 == CHECKPOINT_STEPS.len();
        let options: &[&str] = if is_last { &[] } else { &["--leave-running"] };
        let checkpoint = stage.checkpoint(&job, "image", options)?;
        checkpoints.push((checkpoint.number.to_string(), (before, job.output_so_far()?.len())));
    }
    let outcome = job.finish(CHECKPOINT_TIMEOUT)?;
    ensure!(outcome.status.code() == Some(CHECKPOINTED_EXIT_STATUS), "a job that was stopped: {}", describe(&outcome));
    for (number, written) in checkpoints {
        let outcome = stage.restore("training", "image", &["--at", &number])?.finish(CHECKPOINT_TIMEOUT)?;
        continues(&native.text(), written, &outcome).with_context(|| format!("checkpoint {number}"))?;
    }
    stage.is_clean()
}

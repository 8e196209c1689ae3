//! Processes that somebody else locks, checkpoints, restores and unlocks by `cuCheckpointProcess*`: askers of other jobs, each
//! a process of its own; what fails on the way, who is killed, and what the job can do meanwhile.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use katydid_tests::catalog::Variant;
use katydid_tests::job::{Job, Plan};
use katydid_tests::places::Places;
use katydid_tests::watch::kill;

use crate::scenarios::{LOOP, Scenario, went_on};
use crate::stage::{LIMIT, Stage, WAYS, said};

/// The program that asks, with `ask`, a process and what for.
const ASKER: (&str, Variant) = ("process_checkpoint", Variant::Plain);
/// Stages of `cuCheckpointProcessCheckpoint` that can fail.
const STAGES: [&str; 4] = ["capture", "write", "commit", "leave"];

const ON_ONE_WAY: [(&str, Scenario); 3] = [
    ("a_process_takes_itself_aside", itself),
    ("a_process_whose_checkpoint_fails_is_locked_and_whole", failing),
    ("a_process_that_is_killed_while_it_is_aside_leaves_nothing", killed),
];

/// The trials' names and ways.
pub(crate) fn all() -> impl Iterator<Item = (&'static str, Scenario, &'static str)> {
    let aside: (&str, Scenario) = ("a_process_is_taken_aside_by_others", aside);
    let every = WAYS.map(|way| (aside.0, aside.1, way)).into_iter();
    every.chain(ON_ONE_WAY.iter().map(|&(name, scenario)| (name, scenario, "shm")))
}

/// A job that holds itself at a point, and where it puts what is temporary.
struct Held<'a> {
    stage: &'a Stage,
    job: Job<'a>,
    process: String,
    temporary: PathBuf,
}

impl<'a> Held<'a> {
    fn new(stage: &'a Stage, fault: Option<&str>) -> Result<Self> {
        let temporary = stage.image("temporary");
        fs::create_dir(&temporary)?;
        let variables = [("TMPDIR", temporary.to_str().context("a folder without a name")?)];
        let plan = Plan { points: &[60], fault, variables: &variables, ..Plan::default() };
        let mut job = stage.start_by("held", LOOP, &plan)?;
        ensure!(job.holds_itself()?, "the job ended before its point");
        let process = job.view().context("the job has no view")?["program"].to_string();
        Ok(Self { stage, job, process, temporary })
    }

    /// Has an asker ask for `what`; what it says then, the code and the state after it, is `wanted`. A process that was
    /// unlocked may have ended by the time it is asked for its state.
    fn asked(&self, what: &str, wanted: (u32, u32)) -> Result<()> {
        let outcome = self.stage.start("asker", ASKER, &["ask", &self.process, what], &[])?.finish(LIMIT)?;
        let text = format!("{what} {}, state 0 {}\n", wanted.0, wanted.1);
        let is_free = what == "unlock" && outcome.text().starts_with("unlock 0,") && wanted.0 == 0;
        ensure!(is_free || outcome.text() == text, "wanted {text}got {}", said(&outcome));
        Ok(())
    }

    fn is_empty_handed(temporary: &PathBuf) -> Result<()> {
        let left: Vec<_> = fs::read_dir(temporary)?.flatten().map(|entry| entry.file_name()).collect();
        ensure!(left.is_empty(), "there is left: {left:?}");
        Ok(())
    }

    /// It goes on to its end, and leaves nothing.
    fn ends_well(self, places: &Places) -> Result<()> {
        went_on(places, self.job)?;
        Self::is_empty_handed(&self.temporary)?;
        self.stage.is_clean()
    }
}

/// Each step is another process's, of another job. While it lasts, the job is not checkpointed, and says why.
fn aside(places: &Places, way: &str) -> Result<()> {
    let stage = Stage::new(places, way)?;
    let held = Held::new(&stage, None)?;
    held.asked("state", (0, 0))?;
    held.asked("lock", (0, 1))?;
    let outcome = held.job.checkpoint(&stage.image("image"), &["--device-only"])?;
    let refusal = said(&outcome);
    ensure!(!outcome.status.success() && refusal.contains("was locked by cuCheckpointProcessLock"), "{refusal}");
    held.asked("checkpoint", (0, 2))?;
    stage.server.workers_of(0)?;
    held.asked("unlock", (401, 2))?;
    held.asked("restore", (0, 1))?;
    stage.server.workers_of(1)?;
    held.asked("unlock", (0, 0))?;
    held.ends_well(places)
}

fn itself(places: &Places, way: &str) -> Result<()> {
    let stage = Stage::new(places, way)?;
    let outcome = stage.start("itself", ASKER, &["self"], &[])?.finish(LIMIT)?;
    ensure!(outcome.status.success() && outcome.text() == "PASS itself\n", "{}", said(&outcome));
    stage.is_clean()
}

/// At each stage; then it is unlocked as if nothing had been.
fn failing(places: &Places, way: &str) -> Result<()> {
    for fault in STAGES {
        let stage = Stage::new(places, way)?;
        let held = Held::new(&stage, Some(fault))?;
        held.asked("lock", (0, 1))?;
        held.asked("checkpoint", (304, 1)).context(fault)?;
        stage.server.workers_of(1)?;
        held.asked("unlock", (0, 0))?;
        held.ends_well(places).context(fault)?;
    }
    Ok(())
}

/// While it is locked, and while it is checkpointed.
fn killed(places: &Places, way: &str) -> Result<()> {
    for steps in [&["lock"][..], &["lock", "checkpoint"]] {
        let stage = Stage::new(places, way)?;
        let held = Held::new(&stage, None)?;
        for (step, state) in steps.iter().zip(1..) {
            held.asked(step, (0, state))?;
        }
        kill(held.process.parse()?);
        let outcome = held.job.finish(LIMIT)?;
        ensure!(!outcome.status.success(), "the job ended well: {}", said(&outcome));
        Held::is_empty_handed(&held.temporary)?;
        stage.is_clean()?;
    }
    Ok(())
}

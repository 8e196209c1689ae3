//! Signals to all processes of a job, as batch systems send them. Katydid's processes outlive those that ask programs to end.
//! `SIGSTOP` suspends a job.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use katydid_tests::catalog::Variant;
use katydid_tests::job::Plan;
use katydid_tests::paths::{Paths, driver_under_test};
use katydid_tests::script;
use katydid_tests::watch::{ask_to_end, go_on, is_stopped, runs, stand_still, tree, until};
use katydid_tests::way::Way;

use crate::scenarios::{LOOP, Scenario, expected_of_loop, was_stopped};
use crate::stage::{CHECKPOINT_TIMEOUT, Stage, continues, describe, expected_of};

/// A program that catches signals that ask it to end.
const FIXTURE: (&str, Variant) = ("fixture", Variant::Static);
/// Makes a shell ignore signals that ask it to end, and so the program that it becomes.
pub(crate) const IGNORE: &str = "trap '' HUP INT QUIT TERM USR1 USR2 XCPU";

/// A scenario that needs Open MPI.
pub(crate) const RANKS: (&str, Scenario) = ("signals_to_ranks_and_all_that_serves_them_leave_them_their_gpu", ranks);

const ON_ONE_WAY: [(&str, Scenario); 3] = [
    RANKS,
    ("a_signal_to_all_processes_of_a_restored_job_leaves_the_program_its_gpu", restored),
    ("a_job_whose_processes_are_all_stopped_is_kept_and_stays_so", suspended),
];

/// The trials' names and ways.
pub(crate) fn trials() -> impl Iterator<Item = (&'static str, Scenario, &'static str)> {
    ON_ONE_WAY.iter().map(|&(name, scenario)| (name, scenario, "shm"))
}

/// Returns a stage on which jobs have private servers, whose workers get the signals too.
fn private(paths: &Paths, way: &str) -> Result<Stage> {
    Ok(Stage { way: Way::Private { driver: driver_under_test() }, ..Stage::new(paths, way)? })
}

fn restored(paths: &Paths, way: &str) -> Result<()> {
    let stage = private(paths, way)?;
    let go = stage.image("go");
    let mut job = stage.start("saves", FIXTURE, &["saves", &go.to_string_lossy()], &[])?;
    job.wait_for("ready")?;
    stage.checkpoint(&job, "image", &[])?;
    was_stopped(job)?;
    let document = stage.image("document");
    let job = stage.restore("saves", "image", &["--json", &document.to_string_lossy()])?;
    // The document appears once signals go to the program.
    until("the job runs again", || fs::read_to_string(&document).is_ok_and(|text| text.contains("\"program\"")))?;
    ask_to_end(&tree(job.pid()))?;
    fs::write(&go, "")?;
    let outcome = job.finish(CHECKPOINT_TIMEOUT)?;
    ensure!(outcome.status.success() && outcome.text() == "100\n", "{}", describe(&outcome));
    stage.is_clean()
}

/// Each rank starts with `katydid run`, and ignores the signals. The launcher gets none: it would end its ranks.
fn ranks(paths: &Paths, way: &str) -> Result<()> {
    let (stage, expected) = (Stage::new(paths, way)?, expected_of(paths, "mpi_ring")?);
    let mut job = stage.start_ranks("ring", &deaf_ranks(&stage)?, &Plan { points: &[50], ..Plan::default() })?;
    ensure!(job.holds_itself()?, "the job ended before its point");
    let supervisor = job.view().and_then(|view| u32::try_from(view["supervisor"].as_u64()?).ok());
    let of_supervisor = tree(supervisor.context("the job has no supervisor")?);
    let below_launcher = tree(job.pid()).split_off(1);
    ensure!(below_launcher.len() >= 2, "the launcher has {below_launcher:?}");
    ask_to_end(&[of_supervisor, below_launcher, stage.server.workers_of(2)?].concat())?;
    stage.checkpoint(&job, "image", &["--leave-running"])?;
    let outcome = job.finish(CHECKPOINT_TIMEOUT)?;
    ensure!(outcome.status.success() && outcome.text() == expected, "the ranks: {}", describe(&outcome));
    stage.is_clean()
}

/// Writes a launcher of ranks that ignore signals that ask them to end.
fn deaf_ranks(stage: &Stage) -> Result<PathBuf> {
    let launcher = fs::read_to_string(stage.paths.program("mpi_ring", Variant::Mpi))?;
    let rank = launcher.split('\'').nth(1).context("the launcher names no program")?;
    let (deaf, path) = (stage.image("deaf-rank"), stage.image("deaf-launcher"));
    script::write(&deaf, &format!("#!/bin/sh\n{IGNORE}\nexec '{rank}' \"$@\"\n"))?;
    script::write(&path, &launcher.replace(rank, &deaf.display().to_string()))?;
    Ok(path)
}

/// Supervisor, guard and workers are stopped with the program, as by `scontrol suspend`. A checkpoint that leaves the job
/// running leaves all of it stopped, and one that ends the job ends it.
fn suspended(paths: &Paths, way: &str) -> Result<()> {
    let (stage, expected) = (private(paths, way)?, expected_of_loop(paths)?);
    // It runs for a moment during a checkpoint, and must not end in that time.
    let mut job = stage.start("suspended", LOOP, &["60", "50"], &[60])?;
    ensure!(job.holds_itself()?, "the job ended before its point");
    let all_stopped = |root: u32| tree(root).into_iter().filter(|pid| runs(*pid)).all(is_stopped);
    let processes = tree(job.pid());
    ensure!(processes.len() >= 4, "no supervisor, guard, program and worker: {processes:?}");
    processes.into_iter().for_each(stand_still);
    until("all processes are stopped", || all_stopped(job.pid()))?;
    let before = job.output_so_far()?.len();
    stage.checkpoint(&job, "image", &["--leave-running"])?;
    until("all processes are stopped again", || all_stopped(job.pid()))?;
    stage.checkpoint(&job, "image", &[])?;
    let after = job.output_so_far()?.len();
    was_stopped(job)?;
    let job = stage.restore("suspended", "image", &[])?;
    let program = || job.view().and_then(|view| u32::try_from(view["program"].as_u64()?).ok());
    until("it is restored, and stopped", || program().is_some_and(is_stopped))?;
    let program = program().context("the job has no program")?;
    // `katydid restore` passes the signal on as soon as it catches signals.
    until("it goes on", || {
        go_on(job.pid());
        !is_stopped(program)
    })?;
    continues(&expected, (before, after), &job.finish(CHECKPOINT_TIMEOUT)?)?;
    stage.is_clean()
}

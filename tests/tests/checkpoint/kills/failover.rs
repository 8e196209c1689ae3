//! A worker dies. Its program goes on in another worker if nothing was lost, and otherwise gets the reason.
//!
//! To have nothing sent since the checkpoint, the tests use the same point twice. The program holds itself, is checkpointed,
//! goes on, and holds itself again before the very same frame.

use anyhow::{Context, Result, ensure};
use katydid_tests::job::{Job, Plan, holds_itself};
use katydid_tests::paths::Paths;
use katydid_tests::program::Outcome;
use katydid_tests::watch::{kill, pid_in_own_namespace, runs, tree, until};

use crate::scenarios::{LOOP, Scenario, expected_of_loop, was_stopped, went_on};
use crate::stage::{CHECKPOINT_TIMEOUT, Stage, WAY_NAMES, continues, describe};

/// Scenarios that run on every way.
pub(crate) const ON_EVERY_WAY: [(&str, Scenario); 5] = [
    ("a_worker_killed_after_a_checkpoint_is_replaced", replaced),
    ("a_worker_killed_after_a_checkpoint_of_the_gpu_alone_is_replaced", replaced_from_the_gpu_alone),
    ("a_worker_killed_later_ends_the_session_with_the_reason", reports_what_was_lost),
    ("one_worker_of_several_is_replaced", one_of_several),
    ("a_worker_killed_after_a_restore_is_replaced", replaced_after_a_restore),
];

/// Kills all `count` workers of the server, and waits until they are gone.
fn kill_workers(stage: &Stage, count: usize) -> Result<()> {
    let workers = stage.server.workers_of(count)?;
    workers.iter().copied().for_each(kill);
    Ok(until("the workers are gone", || !workers.iter().any(|pid| runs(*pid)))?)
}

pub(crate) fn replaced(paths: &Paths, way: &str) -> Result<()> {
    goes_on_in_another_worker(paths, way, &["--leave-running"])
}

fn replaced_from_the_gpu_alone(paths: &Paths, way: &str) -> Result<()> {
    goes_on_in_another_worker(paths, way, &["--device-only"])
}

/// Kills two workers in a row: the second was made from the same checkpoint as the first. In between, the program comes to its
/// point once more, so that it uses the worker that is killed.
fn goes_on_in_another_worker(paths: &Paths, way: &str, options: &[&str]) -> Result<()> {
    let stage = Stage::new(paths, way)?;
    let mut job = stage.start("heir", LOOP, &[], &[60, 60, 60])?;
    ensure!(job.holds_itself()?, "the job ended before its point");
    stage.checkpoint(&job, "image", options)?;
    ensure!(job.holds_itself()?, "the job did not come to its point again");
    let holder = holding(&job).context("no process holds itself")?;
    replaced_by_another(&stage, holder)?;
    ensure!(job.holds_itself()?, "the job did not come to its last point");
    replaced_by_another(&stage, holder)?;
    went_on(paths, job)?;
    stage.is_clean()
}

/// Nothing was sent since the restore, so its checkpoint is the one to return to.
fn replaced_after_a_restore(paths: &Paths, way: &str) -> Result<()> {
    let (stage, points) = (Stage::new(paths, way)?, [60, 60]);
    let mut job = stage.start("heir", LOOP, &[], &points)?;
    ensure!(job.holds_itself()?, "the job ended before its point");
    let written = job.output_so_far()?.len();
    stage.checkpoint(&job, "image", &[])?;
    was_stopped(job)?;
    // The restored program has the ids of the first one, whose session must not be taken for its own.
    stage.server.workers_of(0)?;
    let mut job = stage.restore_by("heir", "image", &Plan { points: &points, ..Plan::default() })?;
    ensure!(job.holds_itself()?, "the restored job did not come to its point again");
    replaced_by_another(&stage, holding(&job).context("no process holds itself")?)?;
    continues(&expected_of_loop(paths)?, (written, written), &job.finish(CHECKPOINT_TIMEOUT)?)?;
    stage.is_clean()
}

/// The worker dies without a checkpoint, and with one that is a frame old.
fn reports_what_was_lost(paths: &Paths, way: &str) -> Result<()> {
    let outcome = lost(paths, way, &[60])?;
    ensure!(outcome.errors().contains("no checkpoint to rebuild it from"), "{}", describe(&outcome));
    let outcome = lost(paths, way, &[60, 61])?;
    ensure!(outcome.errors().contains("1 messages were sent to it since checkpoint 1"), "{}", describe(&outcome));
    Ok(())
}

/// Runs a program whose worker dies at the last of the points, with a checkpoint at each of the others.
fn lost(paths: &Paths, way: &str, points: &[u64]) -> Result<Outcome> {
    let stage = Stage::new(paths, way)?;
    let mut job = stage.start("orphan", LOOP, &[], points)?;
    for _ in 1..points.len() {
        ensure!(job.holds_itself()?, "the job ended before its point");
        stage.checkpoint(&job, "image", &["--leave-running"])?;
    }
    ensure!(job.holds_itself()?, "the job ended before its last point");
    kill_workers(&stage, 1)?;
    let outcome = job.finish(CHECKPOINT_TIMEOUT)?;
    ensure!(outcome.status.code().is_some_and(|code| code != 0), "it went on: {}", describe(&outcome));
    stage.is_clean()?;
    Ok(outcome)
}

/// A parent and two children each have a worker. The test kills only the worker of the process that holds itself.
fn one_of_several(paths: &Paths, way: &str) -> Result<()> {
    let stage = Stage::new(paths, way)?;
    let mut job = stage.start("family", ("kept_processes", LOOP.1), &[], &[30, 30])?;
    ensure!(job.holds_itself()?, "the job ended before its point");
    stage.checkpoint(&job, "image", &["--leave-running"])?;
    ensure!(job.holds_itself()?, "the job did not come to its point again");
    let holder = holding(&job).context("no process holds itself")?;
    replaced_by_another(&stage, holder)?;
    // The others also hold themselves, each at its own point.
    while job.holds_itself()? {
        stage.checkpoint(&job, "image", &["--leave-running"])?;
    }
    let expected = crate::stage::expected_of(paths, "kept_processes")?;
    let outcome = job.finish(CHECKPOINT_TIMEOUT)?;
    ensure!(outcome.status.success() && outcome.text() == expected, "{}", describe(&outcome));
    stage.is_clean()
}

/// A process that holds itself at a point.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeldProcess {
    pid: u32,
    /// Its id in its own PID namespace: a restored job has one if its ids are in use here.
    own_pid: u64,
}

/// Kills the worker of a process, and waits until the process has another one or has ended with it.
fn replaced_by_another(stage: &Stage, process: HeldProcess) -> Result<()> {
    let mut worker = None;
    until("the one that holds itself has a worker", || {
        worker = worker_of(stage, process).ok().flatten();
        worker.is_some()
    })?;
    let worker = worker.context("it had one")?;
    kill(worker);
    let is_replaced = || match worker_of(stage, process) {
        Ok(Some(other)) => other != worker,
        _ => !runs(process.pid),
    };
    Ok(until("it has another worker", is_replaced)?)
}

/// Returns the worker of a process's session.
pub(crate) fn worker_of(stage: &Stage, process: HeldProcess) -> Result<Option<u32>> {
    let sessions = stage.server.sessions()?;
    let session = sessions.iter().find(|session| {
        // Of a program on another machine, the server knows only what that says of itself.
        let pid = if session["peer"] == "unix" { process.pid.into() } else { process.own_pid };
        session["pid"] == pid
    });
    Ok(session.and_then(|session| u32::try_from(session["worker_pid"].as_u64()?).ok()))
}

/// Returns the process that holds itself at a point.
pub(crate) fn holding(job: &Job<'_>) -> Option<HeldProcess> {
    let view = job.view()?;
    let member = view["members"].as_array()?.iter().find(|member| holds_itself(member))?;
    let own_pid = member["pid"].as_u64()?;
    let pid = tree(job.pid()).into_iter().find(|pid| pid_in_own_namespace(*pid).map(u64::from) == Some(own_pid))?;
    Some(HeldProcess { pid, own_pid })
}

/// The trials' names and ways.
pub(crate) fn trials() -> impl Iterator<Item = (&'static str, Scenario, &'static str)> {
    ON_EVERY_WAY.iter().flat_map(|&(name, scenario)| WAY_NAMES.map(|way| (name, scenario, way)))
}

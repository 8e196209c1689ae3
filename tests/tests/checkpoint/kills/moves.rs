//! Supervisors fail or die at each stage of a move to another server. One that fails leaves its program with its old session;
//! one that dies takes its program along. The other server keeps nothing of either.

use anyhow::{Context, Result, ensure};
use katydid_tests::job::{Plan, TestFolders};
use katydid_tests::paths::{Paths, driver_under_test};
use katydid_tests::program;
use katydid_tests::server::Server;
use katydid_tests::watch::{WAIT_TIMEOUT, runs, tree, until};

use crate::opencl::address;
use crate::scenarios::{LOOP, Scenario, went_on};
use crate::stage::{Stage, WAY_NAMES, describe};

/// Stages of a move, as the control socket names them.
const STAGES: [&str; 9] = ["prepare", "hold", "pause", "capture", "write", "commit", "rebuild", "leave", "resume"];

/// The trials' names and ways.
pub(crate) fn trials() -> impl Iterator<Item = (&'static str, Scenario, &'static str)> {
    const NAME: &str = "a_fault_at_any_stage_of_a_move_leaves_the_program_whole";
    WAY_NAMES.into_iter().map(|way| (NAME, faults as Scenario, way))
}

fn faults(paths: &Paths, way: &str) -> Result<()> {
    let mut stage = Stage::new(paths, way)?;
    let other = Server::start(paths, &driver_under_test(), &[])?;
    let to = address(&other, way)?;
    for at in STAGES {
        failed(&stage, &other, &to, at).with_context(|| format!("a failure at {at}"))?;
        killed(&stage, &other, &to, at).with_context(|| format!("a kill at {at}"))?;
        // The previous supervisor has left its folder.
        stage.home = TestFolders::new()?;
    }
    Ok(())
}

/// The supervisor fails twice: the first failure leaves everything whole, so the second is like the first.
fn failed(stage: &Stage, other: &Server, to: &str, at: &str) -> Result<()> {
    let mut job = stage.start_by("faulty", LOOP, &Plan { points: &[60, 80], fault: Some(at), ..Plan::default() })?;
    for _ in 0..2 {
        ensure!(job.holds_itself()?, "the job ended before its point");
        let outcome = program::run(&mut job.migrate_command(to, &[]), WAIT_TIMEOUT)?;
        let word = format!("wants a failure at stage {at}");
        ensure!(!outcome.status.success() && outcome.errors().contains(&word), "{}", describe(&outcome));
        ensure!(!outcome.errors().contains("resuming the program failed"), "{}", describe(&outcome));
        other.workers_of(0)?;
    }
    went_on(&stage.paths, job)?;
    stage.is_clean()
}

fn killed(stage: &Stage, other: &Server, to: &str, at: &str) -> Result<()> {
    let fault = format!("{at}:kill");
    let mut job = stage.start_by("killed", LOOP, &Plan { points: &[60], fault: Some(&fault), ..Plan::default() })?;
    ensure!(job.holds_itself()?, "the job ended before its point");
    let processes = tree(job.pid());
    let outcome = program::run(&mut job.migrate_command(to, &[]), WAIT_TIMEOUT)?;
    ensure!(!outcome.status.success(), "it moved: {}", describe(&outcome));
    until("the program is gone", || !processes.iter().any(|pid| runs(*pid)))?;
    stage.server.workers_of(0)?;
    Ok(other.workers_of(0).map(drop)?)
}

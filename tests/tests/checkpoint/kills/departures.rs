//! Programs that end while their sessions move to another server. They are killed after everything is paused and written, when
//! the first session begins to be rebuilt there. The move is cancelled with a message. A live process goes on where it was. A
//! job without a live process ends as its program did, and nothing of it stays on either server.

use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use katydid_tests::gate::ProxyGate;
use katydid_tests::job::{Job, Plan};
use katydid_tests::paths::{Paths, driver_under_test};
use katydid_tests::program;
use katydid_tests::server::Server;
use katydid_tests::watch::{WAIT_TIMEOUT, kill, runs, tree};

use crate::scenarios::{LOOP, Scenario, went_on};
use crate::stage::{CHECKPOINT_TIMEOUT, Stage, describe, two_hold_themselves};

/// More steps than the other program makes, which identifies the program.
const MANY_STEPS: &str = "100000";
/// The exit status by which shells and `katydid run` report a killed program.
const KILLED_STATUS: i32 = 128 + 9;

/// The trials' names and ways: over TCP, since the test can delay that traffic.
pub(crate) fn trials() -> impl Iterator<Item = (&'static str, Scenario, &'static str)> {
    let all: [(&str, Scenario); 2] = [
        ("a_program_that_ends_while_its_job_moves_keeps_no_other", one_of_two),
        ("a_job_that_ends_while_it_moves_leaves_nothing", the_only_one),
    ];
    all.into_iter().map(|(name, scenario)| (name, scenario, "tcp"))
}

fn one_of_two(paths: &Paths, way: &str) -> Result<()> {
    let stage = Stage::new(paths, way)?;
    let program = paths.program(LOOP.0, LOOP.1);
    let text = format!("'{0}' {MANY_STEPS} > '{1}' & '{0}'", program.display(), stage.image("lost").display());
    let plan = Plan { arguments: &["-c", &text], points: &[60], ..Plan::default() };
    let job = Job::start(paths, &stage.home, &stage.way, "two", Path::new("/bin/sh"), &plan)?;
    two_hold_themselves(&job)?;
    moves_without(&stage, &job, &program)?;
    went_on(paths, job)?;
    stage.is_clean()
}

fn the_only_one(paths: &Paths, way: &str) -> Result<()> {
    let stage = Stage::new(paths, way)?;
    let mut job = stage.start("one", LOOP, &[MANY_STEPS], &[60])?;
    ensure!(job.holds_itself()?, "the job ended before its point");
    moves_without(&stage, &job, &paths.program(LOOP.0, LOOP.1))?;
    let outcome = job.finish(CHECKPOINT_TIMEOUT)?;
    ensure!(outcome.status.code() == Some(KILLED_STATUS), "not as its program ended: {}", describe(&outcome));
    stage.is_clean()
}

/// Moves a job to another server, and kills the program of many steps on the way.
fn moves_without(stage: &Stage, job: &Job<'_>, program: &Path) -> Result<()> {
    let other = Server::start(&stage.paths, &driver_under_test(), &[])?;
    let has_many_steps = |pid: &u32| {
        let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let expected = format!("{}\0{MANY_STEPS}\0", program.display());
        command == expected.as_bytes()
    };
    let victim = tree(job.pid()).into_iter().find(has_many_steps).context("the program is not there")?;
    // The command first looks for the server and asks for its driver: both connections pass.
    let gate = ProxyGate::to(other.tcp(), move |number| {
        if number > 1 {
            kill(victim);
            while runs(victim) {
                sleep(Duration::from_millis(1));
            }
        }
    })?;
    let outcome = program::run(&mut job.migrate_command(gate.address(), &[]), WAIT_TIMEOUT)?;
    ensure!(!outcome.status.success() && !outcome.errors().is_empty(), "it moved: {}", describe(&outcome));
    other.workers_of(0)?;
    Ok(())
}

//! Device memory that a program has freed and keeps. A checkpoint need not bring it back, and after a restore another program
//! that runs short can still get it.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use katydid_tests::catalog::Variant;
use katydid_tests::job::Job;
use katydid_tests::paths::Paths;
use katydid_tests::program::{self, Outcome};
use katydid_tests::watch::until;
use tempfile::TempDir;

use crate::scenarios::{Scenario, was_stopped};
use crate::stage::{CHECKPOINT_TIMEOUT, Stage, describe};

const PROGRAM: (&str, Variant) = ("fixture", Variant::Static);
/// The memory of the device, the bytes of the first program, and those of the second: both do not fit.
const DEVICE_MEMORY: (&str, &str) = ("KATYDID_SOFT_MEMORY", "1G");
const FIRST_PROGRAM_BYTES: &str = "800000000";
const SECOND_PROGRAM_BYTES: &str = "600000000";
/// Bytes that a third program takes: they fit beside the second program's.
const THIRD_PROGRAM_BYTES: &str = "300000000";
/// Number of the third program's attempts.
const THIRD_PROGRAM_ATTEMPTS: u32 = 6;
/// An upper limit in bytes for an image of what the first program still has, far less than it has had.
const SMALL_IMAGE_BYTES: u64 = 64 << 20;
/// How long another program holds the memory that a restore needs.
const A_WHILE: Duration = Duration::from_secs(1);

/// The trials' names and ways.
pub(crate) fn trials() -> impl Iterator<Item = (&'static str, Scenario, &'static str)> {
    const IDLE_SCENARIOS: [(&str, Scenario); 5] = [
        ("what_lies_idle_in_a_restored_program_is_another_ones", restored),
        ("a_restore_waits_for_the_memory_of_one_that_ends", late),
        ("a_restore_gets_what_another_program_holds_idle", from_idle),
        ("a_restore_that_waits_for_memory_holds_none", holds_none),
        ("two_restores_that_want_the_same_memory_do_not_block_each_other", two),
    ];
    ["shm", "tcp"].into_iter().flat_map(|way| IDLE_SCENARIOS.map(|(name, scenario)| (name, scenario, way)))
}

/// Starts a server whose workers meet in a shared folder.
fn shared_by(paths: &Paths, way: &str) -> Result<(TempDir, Stage)> {
    let shared = tempfile::tempdir()?;
    let variables = [(DEVICE_MEMORY.0, DEVICE_MEMORY.1.into()), ("KATYDID_SOFT_SHARED", shared.path().into())];
    let stage = Stage::of_driver(paths, way, "soft", &variables)?;
    Ok((shared, stage))
}

/// Starts the program, and stops it by a checkpoint while it holds much idle memory. Once restored, it ends when
/// the file `farewell` exists.
fn stopped(stage: &Stage, farewell: &Path) -> Result<()> {
    let arguments = ["idles", FIRST_PROGRAM_BYTES, farewell.to_str().context("a file without a name")?];
    let mut job = stage.start("idle", PROGRAM, &arguments, &[])?;
    job.wait_for("ready")?;
    let checkpoint = stage.checkpoint(&job, "image", &[])?;
    was_stopped(job)?;
    ensure!(checkpoint.added < SMALL_IMAGE_BYTES, "the image has {} bytes of the device", checkpoint.added);
    without_worker(stage, 0)
}

/// Waits until the worker of a program that has ended is gone, and `others` are left. On a busy machine the worker may hold its
/// memory for longer than another program waits.
fn without_worker(stage: &Stage, others: usize) -> Result<()> {
    stage.server.workers_of(others)?;
    Ok(())
}

/// A worker that is ending may still hold its memory when a restore begins; here it is that of another program, which ends later.
fn late(paths: &Paths, way: &str) -> Result<()> {
    let (_shared, stage) = shared_by(paths, way)?;
    let farewell = stage.image("farewell");
    stopped(&stage, &farewell)?;
    let enough = stage.image("enough").display().to_string();
    let mut holder = stage.start("holder", PROGRAM, &["hold", SECOND_PROGRAM_BYTES, &enough], &[])?;
    holder.wait_for("ready")?;
    let restored = stage.restore("idle", "image", &[])?;
    thread::sleep(A_WHILE);
    fs::write(&enough, "")?;
    ended_well(holder).context("the program that had the memory")?;
    fs::write(&farewell, "")?;
    ended_well(restored).context("the restored program")?;
    stage.is_clean()
}

/// Starts a program that takes that much memory, and stops it by a checkpoint. Once restored, it ends when
/// the file `farewell` exists.
fn stopped_holder(stage: &Stage, name: &str, farewell: &Path) -> Result<()> {
    let farewell = farewell.to_str().context("a file without a name")?;
    let mut job = stage.start(name, PROGRAM, &["hold", SECOND_PROGRAM_BYTES, farewell], &[])?;
    job.wait_for("ready")?;
    stage.checkpoint(&job, name, &[])?;
    was_stopped(job)?;
    without_worker(stage, 0)
}

/// The other program keeps what it has freed, and makes no call.
fn from_idle(paths: &Paths, way: &str) -> Result<()> {
    let (_shared, stage) = shared_by(paths, way)?;
    let (farewell, enough) = (stage.image("farewell"), stage.image("enough"));
    stopped_holder(&stage, "holder", &farewell)?;
    let mut idle = stage.start("idle", PROGRAM, &["idles", FIRST_PROGRAM_BYTES, &enough.display().to_string()], &[])?;
    idle.wait_for("ready")?;
    let restored = stage.restore("holder", "holder", &[])?;
    fs::write(&farewell, "")?;
    ended_well(restored).context("the restored program")?;
    without_worker(&stage, 1)?;
    fs::write(&enough, "")?;
    ended_well(idle).context("the program that had memory idle")?;
    stage.is_clean()
}

/// A third program always finds the memory that would be too little for the restore.
fn holds_none(paths: &Paths, way: &str) -> Result<()> {
    let (_shared, stage) = shared_by(paths, way)?;
    let (farewell, enough) = (stage.image("farewell"), stage.image("enough"));
    stopped_holder(&stage, "waits", &farewell)?;
    let mut holder =
        stage.start("holder", PROGRAM, &["hold", SECOND_PROGRAM_BYTES, &enough.display().to_string()], &[])?;
    holder.wait_for("ready")?;
    let restored = stage.restore("waits", "waits", &[])?;
    for _ in 0..THIRD_PROGRAM_ATTEMPTS {
        let mut taker = stage.way.command(paths, &paths.program(PROGRAM.0, PROGRAM.1));
        let outcome = program::run(taker.args(["takes", "block", THIRD_PROGRAM_BYTES]), CHECKPOINT_TIMEOUT)?;
        ensure!(outcome.text() == "had\n", "a third program: {}", describe(&outcome));
    }
    fs::write(&enough, "")?;
    ended_well(holder).context("the program that had the memory")?;
    fs::write(&farewell, "")?;
    // The restored program may have given up by now.
    let outcome = restored.finish(CHECKPOINT_TIMEOUT)?;
    ensure!(outcome.status.success() || has_given_up(&outcome), "the restored program: {}", describe(&outcome));
    without_worker(&stage, 0)?;
    ended_well(stage.restore("waits", "waits", &[])?).context("restored once more")?;
    stage.is_clean()
}

/// Only one of them fits at a time. Each ends as soon as it is restored.
fn two(paths: &Paths, way: &str) -> Result<()> {
    let (_shared, stage) = shared_by(paths, way)?;
    let (farewell, enough) = (stage.image("farewell"), stage.image("enough"));
    ["first", "second"].iter().try_for_each(|name| stopped_holder(&stage, name, &farewell))?;
    fs::write(&farewell, "")?;
    let mut holder =
        stage.start("holder", PROGRAM, &["hold", SECOND_PROGRAM_BYTES, &enough.display().to_string()], &[])?;
    holder.wait_for("ready")?;
    let both = || -> Result<Vec<Outcome>> {
        let restored = [stage.restore("first", "first", &[])?, stage.restore("second", "second", &[])?];
        // At first another program has the memory, and ends while both wait.
        fs::write(&enough, "")?;
        restored.into_iter().map(|job| Ok(job.finish(CHECKPOINT_TIMEOUT)?)).collect()
    };
    let mut outcomes = both()?;
    ended_well(holder).context("the program that had the memory")?;
    if outcomes.iter().all(has_given_up) {
        // The holder took a while to end.
        without_worker(&stage, 0)?;
        outcomes = both()?;
    }
    let descriptions = || outcomes.iter().map(describe).collect::<String>();
    ensure!(outcomes.iter().any(|outcome| outcome.status.success()), "none was restored: {}", descriptions());
    let other = outcomes.iter().find(|outcome| !outcome.status.success());
    ensure!(other.is_none_or(has_given_up), "another reason: {}", descriptions());
    stage.is_clean()
}

fn has_given_up(outcome: &Outcome) -> bool {
    outcome.errors().contains("the device had no memory for")
}

fn ended_well(job: Job<'_>) -> Result<()> {
    let outcome = job.finish(CHECKPOINT_TIMEOUT)?;
    ensure!(outcome.status.success() && outcome.text().ends_with("done\n"), "{}", describe(&outcome));
    Ok(())
}

/// The program is stopped by its checkpoint while much memory lies idle. Restored, it makes no call until the other program has
/// the memory that it wants. Then it takes its former memory again, and has kept the rest.
fn restored(paths: &Paths, way: &str) -> Result<()> {
    let (_shared, stage) = shared_by(paths, way)?;
    let farewell = stage.image("farewell");
    stopped(&stage, &farewell)?;
    let restored = stage.restore("idle", "image", &[])?;
    stage.server.workers_of(1)?;
    // A taker does not wait for a process that is slow to answer, as the restored program may be until it is back.
    until("another program has what it wants", || {
        let mut taker = stage.way.command(paths, &paths.program(PROGRAM.0, PROGRAM.1));
        program::run(taker.args(["takes", "block", SECOND_PROGRAM_BYTES]), CHECKPOINT_TIMEOUT)
            .is_ok_and(|outcome| outcome.text() == "had\n")
    })?;
    fs::write(&farewell, "")?;
    ended_well(restored).context("the restored program")?;
    stage.is_clean()
}

//! Processes that another process locks, checkpoints, restores and unlocks by `cuCheckpointProcess*`. The asker belongs to no
//! job or to another one. The tests cover failures on the way, processes that are killed, and what the job can do meanwhile.
//!
//! To kill a process in the middle of something, a test stops the supervisor there (`KATYDID_FAULT=STAGE:stop`).

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use katydid_tests::catalog::Variant;
use katydid_tests::job::{Job, Plan, holds_itself};
use katydid_tests::paths::{Paths, driver_under_test};
use katydid_tests::program::{self, Outcome, Running};
use katydid_tests::watch::{go_on, is_stopped, kill, runs, tree, until};
use katydid_tests::way::Way;

use crate::scenarios::{LOOP, Scenario, went_on};
use crate::stage::{CHECKPOINT_TIMEOUT, Stage, WAY_NAMES, describe, expected_of};

/// The program that asks; its arguments are `ask`, a process and a step.
const ASKER: (&str, Variant) = ("process_checkpoint", Variant::Plain);
/// All steps in their order, and the state of the process after each.
const STEPS: [(&str, u32); 4] = [("lock", 1), ("checkpoint", 2), ("restore", 1), ("unlock", 0)];
/// Stages of `cuCheckpointProcessCheckpoint` that can fail.
const STAGES: [&str; 4] = ["capture", "write", "commit", "leave"];
/// A stage in the middle of each step.
const MIDDLES: [&str; 4] = ["lock", "write", "rejoin", "unlock"];
/// The state of a process whose session is lost.
const FAILED: u32 = 3;

const ON_EVERY_WAY: [(&str, Scenario); 7] = [
    ("a_process_is_taken_aside_by_others", stopped_by_others),
    ("a_process_whose_worker_dies_while_it_is_locked_has_failed", lost),
    ("a_process_whose_worker_dies_during_its_checkpoint_has_failed", lost_within),
    ("a_process_whose_worker_dies_stays_locked_if_a_checkpoint_allows", replaced),
    ("a_process_that_cannot_be_restored_now_is_restored_later", restored_late),
    ("the_asking_process_may_be_killed_in_the_middle", asker_killed),
    ("a_process_is_restored_to_other_gpus_in_any_order", placed),
];
const ON_ONE_WAY: [(&str, Scenario); 6] = [
    ("a_process_takes_itself_aside", itself),
    ("a_process_that_cannot_be_locked_is_where_it_was", failing_to_lock),
    ("a_process_whose_checkpoint_fails_is_locked_and_whole", failing),
    ("a_process_whose_restore_fails_is_checkpointed_and_whole", failing_to_restore),
    ("a_process_that_is_killed_while_it_is_aside_leaves_nothing", killed),
    ("a_supervisor_that_is_killed_leaves_no_image", supervisor_killed),
];

/// The trials' names and ways.
pub(crate) fn trials() -> impl Iterator<Item = (&'static str, Scenario, &'static str)> {
    let every = ON_EVERY_WAY.iter().flat_map(|&(name, scenario)| WAY_NAMES.map(|way| (name, scenario, way)));
    every.chain(ON_ONE_WAY.iter().map(|&(name, scenario)| (name, scenario, "shm")))
}

/// A job that holds itself at a point, with its folder for temporary files.
struct HeldJob<'a> {
    stage: &'a Stage,
    job: Job<'a>,
    process: String,
    temporary: PathBuf,
}

impl<'a> HeldJob<'a> {
    /// A job that comes to its end if it can.
    fn new(stage: &'a Stage, fault: Option<&str>) -> Result<Self> {
        Self::of(stage, LOOP, &Plan { points: &[60], fault, ..Plan::default() })
    }

    /// A job that waits for [`HeldJob::farewell`] when a call has failed.
    fn outliving(stage: &'a Stage, fault: Option<&str>) -> Result<Self> {
        let farewell = stage.image("farewell");
        let arguments = ["outlives", farewell.to_str().context("a file without a name")?];
        let plan = Plan { arguments: &arguments, points: &[60], fault, ..Plan::default() };
        Self::of(stage, ("fixture", Variant::Static), &plan)
    }

    fn of(stage: &'a Stage, program: (&str, Variant), plan: &Plan<'_>) -> Result<Self> {
        let temporary = stage.image("temporary");
        fs::create_dir_all(&temporary)?;
        let variables = [("TMPDIR", temporary.to_str().context("a folder without a name")?)];
        let mut job = stage.start_by("held", program, &Plan { variables: &variables, ..*plan })?;
        ensure!(job.holds_itself()?, "the job ended before its point");
        let process = job.view().context("the job has no view")?["program"].to_string();
        Ok(Self { stage, job, process, temporary })
    }

    /// Returns the command of an asker that belongs to no job.
    fn asker(&self, step: &str) -> Command {
        let paths = &self.stage.paths;
        let way = Way::Direct { name: "asker", folder: Some(paths.shim()) };
        let mut command = way.command(paths, &paths.program(ASKER.0, ASKER.1));
        command.args(["ask", &self.process, step]);
        command
    }

    /// Has another process ask for `step`; the code and the state after it must be `expected`.
    fn ask(&self, step: &str, expected: (u32, u32)) -> Result<()> {
        is_answer(&program::run(&mut self.asker(step), CHECKPOINT_TIMEOUT)?, step, expected)
    }

    /// Has another process ask for a restore with pairs of GPUs.
    fn restored_to(&self, gpus: &Gpus, pairs: &Pairs, expected: (u32, u32)) -> Result<()> {
        let mut asker = self.asker("restore");
        asker.args(pairs.iter().flat_map(|(old, new)| [gpus.uuid(*old), gpus.uuid(*new)]));
        is_answer(&program::run(&mut asker, CHECKPOINT_TIMEOUT)?, "restore", expected)
            .with_context(|| format!("{pairs:?}"))
    }

    /// Returns the numbers of the GPUs that the job's worker was told to use, in their order.
    fn gpus(&self, gpus: &Gpus) -> Result<Vec<usize>> {
        let environment = fs::read(format!("/proc/{}/environ", self.stage.server.workers_of(1)?[0]))?;
        let environment = String::from_utf8_lossy(&environment).into_owned();
        let visible = environment.split('\0').find_map(|entry| entry.strip_prefix("CUDA_VISIBLE_DEVICES="));
        visible.into_iter().flat_map(|list| list.split(',')).map(|name| gpus.number(name)).collect()
    }

    /// Has a program that is a job itself ask for `step`.
    fn asked_by_job(&self, step: &str, expected: (u32, u32)) -> Result<()> {
        let asker = self.stage.start("asker", ASKER, &["ask", &self.process, step], &[])?;
        is_answer(&asker.finish(CHECKPOINT_TIMEOUT)?, step, expected)
    }

    /// Has another process ask for `step`, and does `work` while the supervisor is stopped in the middle of it.
    /// Returns the asker's outcome.
    fn meanwhile(&self, step: &str, work: impl FnOnce(&mut Running) -> Result<()>) -> Result<Outcome> {
        let mut asker = Running::start(&mut self.asker(step), Stdio::null())?;
        until("the supervisor stands still", || is_stopped(self.job.pid()))?;
        work(&mut asker)?;
        go_on(self.job.pid());
        Ok(asker.finish(CHECKPOINT_TIMEOUT)?)
    }

    /// Kills the job's worker, and returns its pid.
    fn kill_worker(&self) -> Result<u32> {
        let worker = self.stage.server.workers_of(1)?[0];
        kill(worker);
        until("its worker is gone", || !runs(worker))?;
        Ok(worker)
    }

    /// Checks that the locked process has lost its session: requests for it fail, and its calls fail with a reason.
    fn has_failed(mut self) -> Result<()> {
        let mut line = String::new();
        let failed = format!("state 0, state 0 {FAILED}\n");
        until("it has failed", || {
            line = program::run(&mut self.asker("state"), CHECKPOINT_TIMEOUT)
                .map_or_else(|error| error.to_string(), |it| it.text());
            line != "state 0, state 0 1\n"
        })?;
        ensure!(line == failed, "after it was locked: {line}");
        for (step, _) in STEPS {
            self.ask(step, (401, FAILED))?;
        }
        self.job.wait_for("error")?;
        fs::write(self.stage.image("farewell"), "")?;
        let outcome = self.job.finish(CHECKPOINT_TIMEOUT)?;
        let has_reason =
            outcome.errors().contains("its worker is gone, and the job has no checkpoint to rebuild it from");
        ensure!(outcome.status.code() == Some(3) && has_reason, "{}", self::describe(&outcome));
        is_empty(&self.temporary)?;
        self.stage.is_clean()
    }

    /// Checks that the job goes on to its end, and leaves nothing.
    fn ends_well(self, paths: &Paths) -> Result<()> {
        went_on(paths, self.job)?;
        is_empty(&self.temporary)?;
        self.stage.is_clean()
    }
}

/// Pairs of GPU numbers: the old one, and the one that takes its place.
type Pairs = [(usize, usize)];

/// The machine's GPUs in the driver's order, each by the digits of its UUID.
struct Gpus(Vec<String>);

impl Gpus {
    /// Returns `count` devices of softcuda.
    fn soft(count: u8) -> Self {
        let digits = |number| b"katydid softcud".iter().chain([&number]).map(|byte| format!("{byte:02x}")).collect();
        Self((0..count).map(digits).collect())
    }

    /// Returns the machine's real GPUs.
    fn real() -> Result<Self> {
        let mut asker = Command::new("nvidia-smi");
        let output =
            program::run(asker.args(["--query-gpu=uuid", "--format=csv,noheader"]), CHECKPOINT_TIMEOUT)?.text();
        Ok(Self(output.lines().map(digits_of).collect()))
    }

    /// Returns the argument for [`ASKER`]. For a number that is too large, it names a GPU that does not exist.
    fn uuid(&self, number: usize) -> String {
        self.0.get(number).cloned().unwrap_or_else(|| format!("{number:032x}"))
    }

    fn number(&self, name: &str) -> Result<usize> {
        self.0.iter().position(|uuid| *uuid == digits_of(name)).with_context(|| format!("there is no GPU {name}"))
    }
}

/// Returns the digits of a UUID in the form of NVIDIA's tools.
fn digits_of(name: &str) -> String {
    name.trim_start_matches("GPU-").replace('-', "").trim().to_owned()
}

/// Checks an asker's answer. An unlocked process may have ended by the time the asker reads its state.
pub(crate) fn is_answer(outcome: &Outcome, step: &str, expected: (u32, u32)) -> Result<()> {
    let text = format!("{step} {}, state 0 {}\n", expected.0, expected.1);
    let is_free = step == "unlock" && outcome.text().starts_with("unlock 0,") && expected.0 == 0;
    ensure!(is_free || outcome.text() == text, "wanted {text}got {}", describe(outcome));
    Ok(())
}

fn is_empty(temporary: &PathBuf) -> Result<()> {
    let left: Vec<_> = fs::read_dir(temporary)?.flatten().map(|entry| entry.file_name()).collect();
    ensure!(left.is_empty(), "there is left: {left:?}");
    Ok(())
}

/// Another process of another job asks for each step. While a step lasts, the job is not checkpointed, and gives the reason.
fn stopped_by_others(paths: &Paths, way: &str) -> Result<()> {
    let stage = Stage::new(paths, way)?;
    let held_job = HeldJob::new(&stage, None)?;
    held_job.asked_by_job("state", (0, 0))?;
    held_job.asked_by_job("lock", (0, 1))?;
    let outcome = held_job.job.checkpoint(&stage.image("image"), &["--device-only"])?;
    let refusal = describe(&outcome);
    ensure!(!outcome.status.success() && refusal.contains("was locked by cuCheckpointProcessLock"), "{refusal}");
    held_job.asked_by_job("checkpoint", (0, 2))?;
    stage.server.workers_of(0)?;
    held_job.asked_by_job("unlock", (401, 2))?;
    held_job.asked_by_job("restore", (0, 1))?;
    stage.server.workers_of(1)?;
    held_job.asked_by_job("unlock", (0, 0))?;
    held_job.ends_well(paths)
}

fn lost(paths: &Paths, way: &str) -> Result<()> {
    let stage = Stage::new(paths, way)?;
    let held_job = HeldJob::outliving(&stage, None)?;
    held_job.ask("lock", (0, 1))?;
    held_job.kill_worker()?;
    held_job.has_failed()
}

/// The session is lost at each stage.
fn lost_within(paths: &Paths, way: &str) -> Result<()> {
    for at in STAGES {
        let stage = Stage::new(paths, way)?;
        let held_job = HeldJob::outliving(&stage, Some(&format!("{at}:stop")))?;
        held_job.ask("lock", (0, 1))?;
        let asker = held_job.meanwhile("checkpoint", |_| held_job.kill_worker().map(drop))?;
        ensure!(asker.text().starts_with("checkpoint 304,"), "{at}: {}", describe(&asker));
        held_job.has_failed().context(at)?;
    }
    Ok(())
}

/// The worker is replaced while the process is locked, and in the middle of its own checkpoint.
fn replaced(paths: &Paths, way: &str) -> Result<()> {
    for fault in [None, Some("leave:stop")] {
        let stage = Stage::new(paths, way)?;
        let mut held_job = HeldJob::of(&stage, LOOP, &Plan { points: &[60, 60], fault, ..Plan::default() })?;
        // The job's own checkpoint has no such stage.
        stage.checkpoint(&held_job.job, "image", &["--device-only"])?;
        ensure!(held_job.job.holds_itself()?, "the job did not come to its point again");
        held_job.ask("lock", (0, 1))?;
        let worker = match fault {
            None => held_job.kill_worker()?,
            Some(_) => {
                let mut worker = 0;
                let asker =
                    held_job.meanwhile("checkpoint", |_| held_job.kill_worker().map(|killed| worker = killed))?;
                ensure!(asker.text().starts_with("checkpoint 304,"), "{}", describe(&asker));
                worker
            }
        };
        until("it has another worker", || stage.server.workers_of(1).is_ok_and(|workers| workers[0] != worker))?;
        if fault.is_none() {
            held_job.ask("checkpoint", (0, 2))?;
            held_job.ask("restore", (0, 1))?;
        }
        held_job.ask("unlock", (0, 0))?;
        held_job.ends_well(paths)?;
    }
    Ok(())
}

/// All GPUs move to the next one; they stay there; two of them change places; and all go back. The program has memory and
/// kernels on all of them.
fn placed(paths: &Paths, way: &str) -> Result<()> {
    const ROTATION: [(usize, usize); 3] = [(0, 1), (1, 2), (2, 0)];
    const SWAP: [(usize, usize); 2] = [(1, 0), (0, 1)];
    const WRONG: [&Pairs; 4] = [&[(7, 7)], &[(0, 7)], &[(0, 0), (0, 0)], &[(0, 1)]];
    let soft = [("KATYDID_SOFT_DEVICES", "3".into())];
    let stage = Stage::of_driver(paths, way, "soft", &soft)?;
    let wrong = [&WRONG[..], &[&[(0, 2), (1, 2), (2, 0)]]].concat();
    let right: [(&[_], &[_]); 4] =
        [(&ROTATION, &[1, 2, 0]), (&[], &[1, 2, 0]), (&SWAP, &[0, 2, 1]), (&[(2, 1), (1, 2), (0, 0)], &[])];
    moved_about(paths, &stage, &Gpus::soft(3), &wrong, &right, &[(0, 2), (2, 0)])?;
    let real = if driver_under_test() == "soft" { Gpus(Vec::new()) } else { Gpus::real()? };
    if real.0.len() != 2 {
        return Ok(());
    }
    let right: [(&[_], &[_]); 3] = [(&SWAP, &[1, 0]), (&[], &[1, 0]), (&[(0, 1), (1, 0)], &[])];
    moved_about(paths, &Stage::new(paths, way)?, &real, &WRONG, &right, &SWAP)
}

/// Restores a process with the pairs of `wrong`, each of which must be refused. Then it restores with those of `right` in turn,
/// each of which gives its worker an order of GPUs. After a restore with `last`, the process goes on to its end.
fn moved_about(
    paths: &Paths,
    stage: &Stage,
    gpus: &Gpus,
    wrong: &[&Pairs],
    right: &[(&Pairs, &[usize])],
    last: &Pairs,
) -> Result<()> {
    const PROGRAM: (&str, Variant) = ("kept_devices", Variant::Plain);
    let held_job = HeldJob::of(stage, PROGRAM, &Plan { points: &[200], ..Plan::default() })?;
    held_job.ask("lock", (0, 1))?;
    held_job.ask("checkpoint", (0, 2))?;
    for pairs in wrong {
        held_job.restored_to(gpus, pairs, (1, 2))?;
    }
    for (pairs, order) in right {
        held_job.restored_to(gpus, pairs, (0, 1))?;
        ensure!(held_job.gpus(gpus)? == *order, "after {pairs:?} it is on {:?}", held_job.gpus(gpus)?);
        held_job.ask("checkpoint", (0, 2))?;
        stage.server.workers_of(0)?;
    }
    held_job.restored_to(gpus, last, (0, 1))?;
    held_job.ask("unlock", (0, 0))?;
    let (expected, outcome) = (expected_of(paths, PROGRAM.0)?, held_job.job.finish(CHECKPOINT_TIMEOUT)?);
    ensure!(outcome.status.success() && outcome.text() == expected, "{}", describe(&outcome));
    is_empty(&held_job.temporary)?;
    stage.is_clean()
}

/// First there is no server any more; then one without enough memory; then one whose only slot another session has.
fn restored_late(paths: &Paths, way: &str) -> Result<()> {
    let stage = Stage::new(paths, way)?;
    let ballast = Plan { arguments: &["60", "0", "48"], points: &[70], ..Plan::default() };
    let held_job = HeldJob::of(&stage, LOOP, &ballast)?;
    held_job.ask("lock", (0, 1))?;
    held_job.ask("checkpoint", (0, 2))?;
    kill(stage.server.pid());
    until("the server is gone", || !runs(stage.server.pid()))?;
    held_job.ask("restore", (304, 2)).context("without a server")?;
    let driver = driver_under_test();
    // The memory of a real GPU cannot be changed.
    if driver == "soft" {
        let small = stage.server.successor(paths, &driver, &[], &[("KATYDID_SOFT_MEMORY", "32M".into())])?;
        held_job.ask("restore", (304, 2)).context("without the memory")?;
        small.workers_of(0)?;
    }
    let server = stage.server.successor(paths, &driver, &["--max-sessions", "1"], &[])?;
    let mut other = stage.start("other", LOOP, &[], &[60])?;
    ensure!(other.holds_itself()?, "the other job ended before its point");
    held_job.ask("restore", (304, 2)).context("without a place")?;
    other.kill_everything(&server)?;
    drop(other);
    server.workers_of(0)?;
    held_job.ask("restore", (0, 1))?;
    held_job.ask("unlock", (0, 0))?;
    went_on(paths, held_job.job)?;
    is_empty(&held_job.temporary)?;
    Ok(server.workers_of(0).map(drop)?)
}

/// The step that a killed asker asked for is done all the same, and other askers ask for the rest.
fn asker_killed(paths: &Paths, way: &str) -> Result<()> {
    for middle in MIDDLES.iter().zip(STEPS) {
        let (at, (killed, _)) = middle;
        let stage = Stage::new(paths, way)?;
        let held_job = HeldJob::new(&stage, Some(&format!("{at}:stop")))?;
        for (step, state) in STEPS {
            if step == killed {
                let asker = held_job.meanwhile(step, |asker| {
                    asker.kill();
                    Ok(until("the asker is gone", || !runs(asker.pid()))?)
                })?;
                ensure!(asker.text().is_empty(), "it was not in the middle: {}", describe(&asker));
            } else {
                held_job.ask(step, (0, state)).with_context(|| format!("one was killed at {at}"))?;
            }
        }
        held_job.ends_well(paths).with_context(|| format!("one was killed at {at}"))?;
    }
    Ok(())
}

fn itself(paths: &Paths, way: &str) -> Result<()> {
    let stage = Stage::new(paths, way)?;
    let outcome = stage.start("itself", ASKER, &["self"], &[])?.finish(CHECKPOINT_TIMEOUT)?;
    ensure!(outcome.status.success() && outcome.text() == "PASS itself\n", "{}", describe(&outcome));
    stage.is_clean()
}

/// A lock that fails leaves the process held at its point, from which it would otherwise run to its end. The same holds where
/// the device is not idle in time, as on a busy machine.
fn failing_to_lock(paths: &Paths, way: &str) -> Result<()> {
    let stage = Stage::new(paths, way)?;
    let mut held_job = HeldJob::new(&stage, Some("lock"))?;
    for _ in 0..2 {
        held_job.ask("lock", (304, 0))?;
        let view = held_job.job.view().context("the job has no view")?;
        ensure!(view["members"].as_array().is_some_and(|all| all.iter().any(holds_itself)), "it went on: {view}");
    }
    stage.checkpoint(&held_job.job, "image", &["--device-only"])?;
    ensure!(!held_job.job.holds_itself()?, "it was held again");
    held_job.ends_well(paths)
}

/// The checkpoint fails at each stage; then unlock succeeds as if nothing had happened.
fn failing(paths: &Paths, way: &str) -> Result<()> {
    for fault in STAGES {
        let stage = Stage::new(paths, way)?;
        let held_job = HeldJob::new(&stage, Some(fault))?;
        held_job.ask("lock", (0, 1))?;
        held_job.ask("checkpoint", (304, 1)).context(fault)?;
        stage.server.workers_of(1)?;
        held_job.ask("unlock", (0, 0))?;
        held_job.ends_well(paths).context(fault)?;
    }
    Ok(())
}

/// The worker that already has the session ends again.
fn failing_to_restore(paths: &Paths, way: &str) -> Result<()> {
    let stage = Stage::new(paths, way)?;
    let held_job = HeldJob::new(&stage, Some("rejoin"))?;
    held_job.ask("lock", (0, 1))?;
    held_job.ask("checkpoint", (0, 2))?;
    for _ in 0..2 {
        held_job.ask("restore", (304, 2))?;
        stage.server.workers_of(0)?;
    }
    kill(held_job.process.parse()?);
    let outcome = held_job.job.finish(CHECKPOINT_TIMEOUT)?;
    ensure!(!outcome.status.success(), "the job ended well: {}", describe(&outcome));
    is_empty(&held_job.temporary)?;
    stage.is_clean()
}

/// The process is killed while it is locked, and while it is checkpointed.
fn killed(paths: &Paths, way: &str) -> Result<()> {
    for steps in [&["lock"][..], &["lock", "checkpoint"]] {
        let stage = Stage::new(paths, way)?;
        let held_job = HeldJob::new(&stage, None)?;
        for (step, state) in steps.iter().zip(1..) {
            held_job.ask(step, (0, state))?;
        }
        kill(held_job.process.parse()?);
        let outcome = held_job.job.finish(CHECKPOINT_TIMEOUT)?;
        ensure!(!outcome.status.success(), "the job ended well: {}", describe(&outcome));
        is_empty(&held_job.temporary)?;
        stage.is_clean()?;
    }
    Ok(())
}

/// The supervisor is killed in the middle of a checkpoint, after it, and in the middle of a migration.
fn supervisor_killed(paths: &Paths, way: &str) -> Result<()> {
    for fault in [Some("commit:kill"), None, Some("write:kill")] {
        let stage = Stage::new(paths, way)?;
        let held_job = HeldJob::new(&stage, fault)?;
        let processes = tree(held_job.job.pid());
        if fault == Some("write:kill") {
            let address = stage.server.unix();
            let outcome = program::run(&mut held_job.job.migrate_command(&address, &[]), CHECKPOINT_TIMEOUT)?;
            ensure!(!outcome.status.success(), "it was moved: {}", describe(&outcome));
        } else {
            held_job.ask("lock", (0, 1))?;
            let asker = program::run(&mut held_job.asker("checkpoint"), CHECKPOINT_TIMEOUT)?;
            let is_done = asker.text() == "checkpoint 0, state 0 2\n";
            ensure!(is_done == fault.is_none(), "{}", describe(&asker));
            ensure!(fault.is_some() || is_empty(&held_job.temporary).is_err(), "its image is elsewhere");
            kill(held_job.job.pid());
        }
        until("all processes are gone", || !processes.iter().any(|pid| runs(*pid)))?;
        is_empty(&held_job.temporary).with_context(|| format!("with {fault:?}"))?;
        stage.server.workers_of(0)?;
    }
    Ok(())
}

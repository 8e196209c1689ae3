//! Exported memory across a checkpoint: programs get handles before it and open them after it, or have them open during it.
//!
//! A handle leads only to programs that were restored together. That holds although several restores of one image, and the
//! first run, exist at once. A process that shares something is checkpointed with all its peers, or not at all.

use anyhow::{Context, Result, ensure};
use katydid_tests::catalog::Variant;
use katydid_tests::job::{Job, Plan};
use katydid_tests::paths::{Paths, driver_under_test};
use katydid_tests::program;
use katydid_tests::server::Server;
use katydid_tests::watch::kill;
use katydid_tests::way::Way;

use crate::kills::failover::{holding, worker_of};
use crate::processes::is_answer;
use crate::scenarios::Scenario;
use crate::stage::{CHECKPOINT_TIMEOUT, Stage, continues, describe, expected_of};

/// Its frames 60 and 80 lie between the export and the opening; the importers send fewer frames.
const PROGRAM: (&str, Variant) = ("kept_exports", Variant::Plain);
const POINTS: [u64; 2] = [60, 80];

/// Three programs that have all of each other's memory open, also at their frame 90.
const OPEN: (&str, Variant) = ("kept_shared", Variant::Plain);
const POINT: u64 = 90;

/// Two programs that have each other's event open at their frame 30. With one step, they are then about to destroy
/// what they have exported.
const CLOSING: (&str, Variant) = ("kept_ranks", Variant::Plain);
const STEPS: &str = "1";
const LAST_FRAME: u64 = 30;

const ON_SOME_WAYS: [(&str, Scenario, &str); 7] = [
    ("exports_are_opened_by_programs_restored_with_their_exporter", family, "shm"),
    ("exports_are_opened_by_programs_restored_with_their_exporter", family, "tcp"),
    ("what_is_open_is_so_again_in_each_restore", several, "shm"),
    ("what_is_open_is_so_again_in_each_restore", several, "tcp"),
    ("an_exporter_that_ends_right_after_a_restore_ends_no_importer", ended, "shm"),
    ("a_program_that_shares_does_not_move_alone", together, "unix"),
    ("an_exporter_whose_worker_dies_is_not_rebuilt", exporter_lost, "shm"),
];

/// The trials' names and ways.
pub(crate) fn trials() -> impl Iterator<Item = (&'static str, Scenario, &'static str)> {
    ON_SOME_WAYS.into_iter()
}

/// The first run holds itself at its second point with all its exports, while a restore beside it runs to its end. Then the
/// first run ends too. Both were checkpointed once more at that point, and are also restored from there: in their old places,
/// and a third time.
fn family(paths: &Paths, way: &str) -> Result<()> {
    let (stage, expected) = (Stage::new(paths, way)?, expected_of(paths, PROGRAM.0)?);
    let mut first = stage.start("exported", PROGRAM, &[], &POINTS)?;
    ensure!(first.holds_itself()?, "the job ended before its point");
    let output_len = first.output_so_far()?.len();
    stage.checkpoint(&first, "image", &["--leave-running"])?;
    ensure!(first.holds_itself()?, "the job ended before its second point");
    let mut second = stage.restore_by("exported-2", "image", &Plan { points: &POINTS, ..Plan::default() })?;
    ensure!(second.holds_itself()?, "the restored job ended before its second point");
    let further = output_len + second.output_so_far()?.len();
    stage.checkpoint(&second, "second", &["--leave-running"])?;
    continues(&expected, (output_len, output_len), &second.finish(CHECKPOINT_TIMEOUT)?)
        .context("beside the first run")?;
    stage.checkpoint(&first, "first", &["--leave-running"])?;
    whole(first, &expected)?;
    for (name, image) in [("exported", "first"), ("exported", "second"), ("exported-2", "second")] {
        let outcome = stage.restore(name, image, &[])?.finish(CHECKPOINT_TIMEOUT)?;
        continues(&expected, (further, further), &outcome).with_context(|| format!("{name} from {image}"))?;
    }
    stage.is_clean()
}

fn whole(job: Job<'_>, expected: &str) -> Result<()> {
    let outcome = job.finish(CHECKPOINT_TIMEOUT)?;
    ensure!(outcome.status.success() && outcome.text() == expected, "the first run: {}", describe(&outcome));
    Ok(())
}

/// Two restores of one image run at once while the first run holds itself at the checkpoint's point. Then the first run goes on
/// to its end.
fn several(paths: &Paths, way: &str) -> Result<()> {
    let (stage, expected) = (Stage::new(paths, way)?, expected_of(paths, OPEN.0)?);
    let mut first = stage.start("open", OPEN, &[], &[POINT])?;
    ensure!(first.holds_itself()?, "the job ended before its point");
    let output_len = first.output_so_far()?.len();
    stage.checkpoint(&first, "image", &["--leave-running"])?;
    let restores = ["open-2", "open-3"].map(|name| stage.restore(name, "image", &[]));
    for restored in restores {
        continues(&expected, (output_len, output_len), &restored?.finish(CHECKPOINT_TIMEOUT)?)
            .context("beside the first run")?;
    }
    let_go(&stage, &mut first)?;
    whole(first, &expected)?;
    stage.is_clean()
}

/// No process goes on before all have opened what they had open, since an exporter destroys some of it with its next calls.
fn ended(paths: &Paths, way: &str) -> Result<()> {
    let stage = Stage::new(paths, way)?;
    let mut job = stage.start("closing", CLOSING, &[STEPS], &[LAST_FRAME])?;
    ensure!(job.holds_itself()?, "the job ended before its point");
    stage.checkpoint(&job, "image", &[])?;
    drop(job);
    for time in 1..=5 {
        let outcome = stage.restore("closing", "image", &[])?.finish(CHECKPOINT_TIMEOUT)?;
        ensure!(outcome.status.success(), "restore {time}: {}", describe(&outcome));
    }
    stage.is_clean()
}

/// Lets the job go on by a checkpoint each time it holds itself. Each process holds itself at that number of its own frames.
fn let_go(stage: &Stage, job: &mut Job<'_>) -> Result<()> {
    while job.holds_itself()? {
        stage.checkpoint(job, "later", &["--leave-running"])?;
    }
    Ok(())
}

/// Neither `katydid migrate` nor `cuCheckpointProcess*` may take one of them away; the job goes on as if it had not been asked.
fn together(paths: &Paths, way: &str) -> Result<()> {
    let (stage, expected) = (Stage::new(paths, way)?, expected_of(paths, OPEN.0)?);
    let other = Server::start(paths, &driver_under_test(), &[])?;
    let mut job = stage.start("open", OPEN, &[], &[POINT])?;
    ensure!(job.holds_itself()?, "the job ended before its point");
    let outcome = program::run(&mut job.migrate_command(&other.unix(), &[]), CHECKPOINT_TIMEOUT)?;
    let is_refused = !outcome.status.success() && outcome.errors().contains("which cannot be moved");
    ensure!(is_refused, "{}", describe(&outcome));
    taken_aside(&stage, &job)?;
    let_go(&stage, &mut job)?;
    whole(job, &expected)?;
    other.workers_of(0)?;
    stage.is_clean()
}

/// Has another process lock the job's program, checkpoint it, which is not supported (801), and unlock it.
fn taken_aside(stage: &Stage, job: &Job<'_>) -> Result<()> {
    let paths = &stage.paths;
    let process = job.view().context("the job has no view")?["program"].to_string();
    for (what, answer) in [("lock", (0, 1)), ("checkpoint", (801, 1)), ("unlock", (0, 0))] {
        let way = Way::Direct { name: "asker", folder: Some(paths.shim()) };
        let mut asker = way.command(paths, &paths.program("process_checkpoint", Variant::Plain));
        is_answer(&program::run(asker.args(["ask", &process, what]), CHECKPOINT_TIMEOUT)?, what, answer)?;
    }
    Ok(())
}

/// Other programs have the exporter's memory open; a new worker would have other memory.
fn exporter_lost(paths: &Paths, way: &str) -> Result<()> {
    let stage = Stage::new(paths, way)?;
    let mut job = stage.start("open", OPEN, &[], &[POINT, POINT])?;
    ensure!(job.holds_itself()?, "the job ended before its point");
    stage.checkpoint(&job, "image", &["--leave-running"])?;
    ensure!(job.holds_itself()?, "the job did not come to its point again");
    let holder = holding(&job).context("no process holds itself")?;
    kill(worker_of(&stage, holder)?.context("it has no worker")?);
    let outcome = job.finish(CHECKPOINT_TIMEOUT)?;
    let reason = "has exported memory or events to other programs";
    ensure!(!outcome.status.success() && outcome.errors().contains(reason), "{}", describe(&outcome));
    stage.is_clean()
}

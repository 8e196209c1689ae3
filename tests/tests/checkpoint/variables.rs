//! Module variables that a driver places elsewhere in the next worker. A variable without pointers to it gets its contents at
//! its new address. A variable with pointers to it keeps the job alive, since no restore could bring it back. softcuda
//! displaces variables on demand.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use katydid_tests::catalog::Variant;
use katydid_tests::job::{Job, Plan};
use katydid_tests::paths::Paths;
use tempfile::TempDir;

use crate::scenarios::{LOOP, Scenario, expected_of_loop, was_stopped};
use crate::stage::{CHECKPOINT_TIMEOUT, Stage, WAY_NAMES, continues, describe, expected_of};

const PROGRAM: (&str, Variant) = ("kept_variables", Variant::Plain);
/// A frame between two of the program's steps.
const POINT: u64 = 40;
const STEPS: &str = "30";
/// Holders of a variable's address, and words of the refusal.
const HOLDERS: [(&str, &str); 7] = [
    ("told", "the address of the variable table was"),
    ("device", "(arena of GPU 0"),
    ("pinned", "the program's own memory holds"),
    ("host", "the program's own memory holds"),
    ("graph", "a parameter of executable graph"),
    ("variable", "variable to_named of module 2"),
    ("functions", "memory may hold addresses of functions"),
];

/// The trials' names and ways.
pub(crate) fn trials() -> impl Iterator<Item = (&'static str, Scenario, &'static str)> {
    const ON_ONE_WAY: [(&str, Scenario); 6] = [
        ("a_variable_that_is_pointed_to_keeps_the_job_alive", pointed),
        ("a_checkpoint_that_would_not_come_back_is_taken_by_force", forced),
        ("a_rehearsal_tries_other_workers_as_a_restore_does", tried_again),
        ("a_checkpoint_of_a_job_that_goes_on_is_rehearsed_too", running),
        ("a_rehearsal_needs_little_memory_of_the_device", little_memory),
        ("a_restore_says_that_it_passes_over_a_checkpoint_without_a_manifest", passed_over),
    ];
    let every = WAY_NAMES
        .map(|way| ("variables_without_pointers_to_them_may_lie_elsewhere", untold_addresses as Scenario, way));
    every.into_iter().chain(ON_ONE_WAY.map(|(name, scenario)| (name, scenario, "shm")))
}

/// Displacement in bytes of the first worker's variables from softcuda's own choice. It gives an address whose lower half is
/// zero, which two small numbers side by side produce in any memory.
const FIRST_DISPLACEMENT: u64 = 1111 * 4096;

/// A server whose workers displace variables by the bytes in a file.
struct DisplacingServer {
    stage: Stage,
    folder: TempDir,
}

impl DisplacingServer {
    fn new(paths: &Paths, way: &str) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("bytes");
        fs::write(&file, "")?;
        let variables = [("KATYDID_SOFT_DISPLACE", file.into())];
        let stage = Stage::of_driver(paths, way, "soft", &variables)?;
        Ok(Self { stage, folder })
    }

    /// Sets the displacements of the next workers, in bytes from the first one's place; the last holds for all that follow.
    fn displace(&self, bytes: &[u64]) -> Result<()> {
        let lines: String = bytes.iter().map(|bytes| format!("{}\n", FIRST_DISPLACEMENT + bytes)).collect();
        Ok(fs::write(self.folder.path().join("bytes"), lines)?)
    }

    fn start(&self, holder: &str) -> Result<Job<'_>> {
        self.start_with(holder, &[POINT])
    }

    /// Starts a program in a worker that displaces nothing, and waits until it comes to its first point.
    fn start_with(&self, holder: &str, points: &[u64]) -> Result<Job<'_>> {
        self.displace(&[0])?;
        let mut job = self.stage.start(holder, PROGRAM, &[STEPS, holder], points)?;
        ensure!(job.holds_itself()?, "the job ended before its point: {}", job.errors_so_far()?);
        Ok(job)
    }

    /// Returns what the program prints in an undisturbed run.
    fn undisturbed(&self, holder: &str) -> Result<String> {
        let outcome = self.stage.start("undisturbed", PROGRAM, &[STEPS, holder], &[])?.finish(CHECKPOINT_TIMEOUT)?;
        ensure!(outcome.status.success(), "undisturbed: {}", describe(&outcome));
        Ok(outcome.text())
    }

    /// Takes a checkpoint that stops the job, and returns the bytes of output until then.
    fn stopped(&self, job: Job<'_>, options: &[&str]) -> Result<usize> {
        let written = job.output_so_far()?.len();
        self.stage.checkpoint(&job, "image", options)?;
        was_stopped(job)?;
        Ok(written)
    }
}

fn untold_addresses(paths: &Paths, way: &str) -> Result<()> {
    let it = DisplacingServer::new(paths, way)?;
    let expected = it.undisturbed("none")?;
    let points = [POINT, POINT + 20];
    let job = it.start_with("none", &points)?;
    it.displace(&[4096])?;
    let written = it.stopped(job, &[])?;
    // Displaces the variables again, from where they are by then.
    it.displace(&[12288])?;
    let plan = Plan { points: &points, ..Plan::default() };
    let mut job = it.stage.restore_by("none", "image", &plan)?;
    ensure!(job.holds_itself()?, "the job ended before its point: {}", job.errors_so_far()?);
    it.displace(&[0])?;
    let further = it.stopped(job, &[])?;
    let outcome = it.stage.restore("none", "image", &[])?.finish(CHECKPOINT_TIMEOUT)?;
    continues(&expected, (written + further, written + further), &outcome)?;
    it.stage.is_clean()
}

fn pointed(paths: &Paths, way: &str) -> Result<()> {
    let it = DisplacingServer::new(paths, way)?;
    for (holder, named) in HOLDERS {
        refused(&it, holder, named).with_context(|| holder.to_owned())?;
    }
    it.stage.is_clean()
}

/// Checks that the checkpoint is refused, that the image is unchanged, and that the program goes on.
fn refused(it: &DisplacingServer, holder: &str, named: &str) -> Result<()> {
    it.displace(&[0])?;
    let expected = it.undisturbed(holder)?;
    let job = it.start(holder)?;
    it.displace(&[4096])?;
    let outcome = job.checkpoint(&it.stage.image("image"), &[])?;
    let errors = outcome.errors();
    ensure!(outcome.status.code() == Some(1), "{}", describe(&outcome));
    ensure!(errors.contains(named) && errors.contains("--force"), "{}", describe(&outcome));
    ensure!(checkpoints(&it.stage.image("image"))? == 0, "the image has a checkpoint");
    let outcome = job.finish(CHECKPOINT_TIMEOUT)?;
    ensure!(outcome.status.success() && outcome.text() == expected, "the program that goes on: {}", describe(&outcome));
    Ok(())
}

/// Returns the number of complete checkpoints of an image.
fn checkpoints(image: &Path) -> Result<usize> {
    let folders = fs::read_dir(image.join("checkpoints"))?.collect::<Result<Vec<_>, _>>()?;
    Ok(folders.iter().filter(|folder| folder.path().join("manifest.json").exists()).count())
}

fn forced(paths: &Paths, way: &str) -> Result<()> {
    let it = DisplacingServer::new(paths, way)?;
    let expected = it.undisturbed("told")?;
    let job = it.start("told")?;
    let written = job.output_so_far()?.len();
    it.displace(&[4096])?;
    let outcome = job.checkpoint(&it.stage.image("image"), &["--force"])?;
    ensure!(outcome.status.success(), "by force: {}", describe(&outcome));
    ensure!(outcome.errors().contains("--force was given"), "it says nothing: {}", describe(&outcome));
    was_stopped(job)?;
    let outcome = it.stage.restore("told", "image", &[])?.finish(CHECKPOINT_TIMEOUT)?;
    ensure!(!outcome.status.success() && outcome.errors().contains("the variable table"), "{}", describe(&outcome));
    it.displace(&[0])?;
    let outcome = it.stage.restore("told", "image", &[])?.finish(CHECKPOINT_TIMEOUT)?;
    continues(&expected, (written, written), &outcome)?;
    it.stage.is_clean()
}

fn tried_again(paths: &Paths, way: &str) -> Result<()> {
    let it = DisplacingServer::new(paths, way)?;
    let expected = it.undisturbed("told")?;
    let job = it.start("told")?;
    it.displace(&[4096, 0])?;
    let written = it.stopped(job, &[])?;
    let outcome = it.stage.restore("told", "image", &[])?.finish(CHECKPOINT_TIMEOUT)?;
    continues(&expected, (written, written), &outcome)?;
    it.stage.is_clean()
}

fn running(paths: &Paths, way: &str) -> Result<()> {
    let it = DisplacingServer::new(paths, way)?;
    let expected = it.undisturbed("device")?;
    let job = it.start("device")?;
    it.displace(&[4096])?;
    let outcome = job.checkpoint(&it.stage.image("image"), &["--leave-running"])?;
    ensure!(outcome.status.code() == Some(1), "it would not come back: {}", describe(&outcome));
    let outcome = job.finish(CHECKPOINT_TIMEOUT)?;
    ensure!(outcome.status.success() && outcome.text() == expected, "the program that goes on: {}", describe(&outcome));
    it.stage.is_clean()
}

/// The program holds most of the memory of a device that its workers share.
fn little_memory(paths: &Paths, way: &str) -> Result<()> {
    let shared = tempfile::tempdir()?;
    let variables = [("KATYDID_SOFT_MEMORY", "96M".into()), ("KATYDID_SOFT_SHARED", shared.path().into())];
    let stage = Stage::of_driver(paths, way, "soft", &variables)?;
    let mut job = stage.start("large", LOOP, &["60", "0", "64"], &[60])?;
    ensure!(job.holds_itself()?, "the job ended before its point: {}", job.errors_so_far()?);
    let written = job.output_so_far()?.len();
    stage.checkpoint(&job, "image", &[])?;
    was_stopped(job)?;
    let outcome = stage.restore("large", "image", &[])?.finish(CHECKPOINT_TIMEOUT)?;
    continues(&expected_of_loop(paths)?, (written, written), &outcome)?;
    stage.is_clean()
}

fn passed_over(paths: &Paths, way: &str) -> Result<()> {
    let stage = Stage::new(paths, way)?;
    let mut job = stage.start("older", LOOP, &[], &[50, 60])?;
    let mut written = Vec::new();
    while job.holds_itself()? {
        written.push(job.output_so_far()?.len());
        stage.checkpoint(&job, "image", &["--leave-running"])?;
    }
    ensure!(job.finish(CHECKPOINT_TIMEOUT)?.status.success(), "the program failed");
    let expected = expected_of(paths, LOOP.0)?;
    let outcome = stage.restore("older", "image", &[])?.finish(CHECKPOINT_TIMEOUT)?;
    ensure!(!outcome.errors().contains("manifest"), "nothing is missing: {}", describe(&outcome));
    fs::remove_file(stage.image("image").join("checkpoints/000002/manifest.json"))?;
    let outcome = stage.restore("older", "image", &[])?.finish(CHECKPOINT_TIMEOUT)?;
    ensure!(outcome.errors().contains("checkpoint 2 has no manifest"), "it says nothing: {}", describe(&outcome));
    continues(&expected, (written[0], written[0]), &outcome)?;
    stage.is_clean()
}

//! Surroundings of a job that change between its checkpoint and its restore, or that are unusual. The tests cover modes of
//! files and folders, standard streams of another mount namespace, and folders for sockets that are missing or have long names.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Result, ensure};
use katydid_tests::commands::katydid;
use katydid_tests::job::{CHECKPOINTED_EXIT_STATUS, Job, Plan};
use katydid_tests::paths::{Paths, driver_under_test};
use katydid_tests::program::{self, Running};
use katydid_tests::watch::{WAIT_TIMEOUT, until};
use katydid_tests::way::Way;

use crate::scenarios::{LOOP, Scenario, expected_of_loop, was_stopped};
use crate::stage::{CHECKPOINT_TIMEOUT, Stage, continues, describe};

const ON_ONE_WAY: [(&str, Scenario); 3] = [
    ("files_and_folders_whose_mode_has_changed_are_opened_again", changed_modes),
    ("standard_streams_of_another_mount_namespace_are_no_obstacle", streams_from_outside),
    ("folders_for_sockets_that_cannot_be_used_are_passed_over", unfit_folders),
];

/// The trials' names and ways.
pub(crate) fn trials() -> impl Iterator<Item = (&'static str, Scenario, &'static str)> {
    ON_ONE_WAY.iter().map(|&(name, scenario)| (name, scenario, "shm"))
}

/// Changes into the first folder, opens its file, and becomes the program of the second argument.
const OPENING: &str = r#"cd "$1" && exec 5<file && exec "$2""#;

fn changed_modes(paths: &Paths, way: &str) -> Result<()> {
    let stage = Stage::new(paths, way)?;
    let (folder, program) = (stage.image("folder"), paths.program(LOOP.0, LOOP.1));
    fs::create_dir(&folder)?;
    fs::write(folder.join("file"), "text")?;
    let mode = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode));
    mode(&folder, 0o755)?;
    mode(&folder.join("file"), 0o644)?;
    let arguments = ["-c", OPENING, "sh", &folder.display().to_string(), &program.display().to_string()];
    let plan = Plan { arguments: &arguments, points: &[30], ..Plan::default() };
    let mut job = Job::start(paths, &stage.home, &stage.way, "modes", Path::new("/bin/sh"), &plan)?;
    ensure!(job.holds_itself()?, "the job ended before its point");
    stage.checkpoint(&job, "image", &[])?;
    let written = job.output_so_far()?.len();
    was_stopped(job)?;
    mode(&folder, 0o700)?;
    mode(&folder.join("file"), 0o600)?;
    continues(
        &expected_of_loop(paths)?,
        (written, written),
        &stage.restore("modes", "image", &[])?.finish(CHECKPOINT_TIMEOUT)?,
    )?;
    stage.is_clean()
}

/// The supervisor has a mount namespace of its own, and its streams come from the tests' namespace.
fn streams_from_outside(paths: &Paths, way: &str) -> Result<()> {
    let stage = Stage::new(paths, way)?;
    let plan = Plan { points: &[30], through: &["unshare", "--mount"], ..Plan::default() };
    let mut job = stage.start_by("entered", LOOP, &plan)?;
    ensure!(job.holds_itself()?, "the job ended before its point");
    stage.checkpoint(&job, "image", &[])?;
    let written = job.output_so_far()?.len();
    was_stopped(job)?;
    continues(
        &expected_of_loop(paths)?,
        (written, written),
        &stage.restore("entered", "image", &[])?.finish(CHECKPOINT_TIMEOUT)?,
    )?;
    stage.is_clean()
}

/// `XDG_RUNTIME_DIR` leads nowhere, and `TMPDIR` is too long for a socket's path. The process that asks for
/// the checkpoint has neither.
fn unfit_folders(paths: &Paths, _: &str) -> Result<()> {
    let home = tempfile::tempdir()?;
    let temporary = home.path().join("t".repeat(100));
    fs::create_dir(&temporary)?;
    let (image, name) = (home.path().join("image"), format!("unfit-{}", std::process::id()));
    let way = Way::Private { driver: driver_under_test() };
    let unfit = |command: &mut Command| {
        command.env("XDG_RUNTIME_DIR", home.path().join("missing")).env("TMPDIR", &temporary);
    };
    let mut command = way.job(paths, &["--name", &name], &paths.program(LOOP.0, LOOP.1));
    unfit(&mut command);
    let job = Running::start(command.env("KATYDID_CHECKPOINT_AT", "30"), Stdio::null())?;
    let checkpoint = || {
        let mut command = katydid(paths, &["checkpoint", &name, "-o"]);
        program::run(command.arg(&image).env_remove("XDG_RUNTIME_DIR"), WAIT_TIMEOUT)
    };
    let mut outcome = checkpoint()?;
    // The job does not exist until its supervisor has started.
    until("the job is found", || {
        let is_unknown = outcome.errors().contains("no job") || outcome.errors().contains("was not started");
        if is_unknown && let Ok(next) = checkpoint() {
            outcome = next;
        }
        !is_unknown
    })?;
    let (said_of_it, written) = (describe(&outcome), job.output_so_far()?.len());
    ensure!(outcome.status.success(), "{said_of_it}");
    let outcome = job.finish(CHECKPOINT_TIMEOUT)?;
    ensure!(outcome.status.code() == Some(CHECKPOINTED_EXIT_STATUS), "{}", describe(&outcome));
    let mut command = way.restore(paths, &image, &[]);
    unfit(&mut command);
    continues(&expected_of_loop(paths)?, (0, written), &program::run(&mut command, CHECKPOINT_TIMEOUT)?)
}

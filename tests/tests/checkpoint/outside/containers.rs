//! A job in a container, as far as a test can make one without an engine.
//!
//! The container has mount, pid and IPC namespaces of its own, and a runtime folder that is visible nowhere else. `/proc/sys`
//! is read-only there, and some files are masked. It has those of root's capabilities that `docs/how-to/checkpoint-rights.md`
//! names. There is no seccomp profile, as that page requires.

use std::fs;
use std::iter;

use anyhow::{Context, Result, ensure};
use katydid_tests::catalog::Variant;
use katydid_tests::commands::katydid;
use katydid_tests::job::{Job, Plan};
use katydid_tests::paths::{Paths, driver_under_test};
use katydid_tests::program::run;
use katydid_tests::watch::{WAIT_TIMEOUT, tree};
use katydid_tests::way::Way;

use super::streams::through;
use crate::scenarios::{Scenario, was_stopped};
use crate::stage::{CHECKPOINT_TIMEOUT, Stage, describe};

const JOB: &str = "contained";

/// The first process of a container, started by `bash -c CONTAINER RUNTIME_FOLDER COMMAND...`. It has the default capabilities
/// of Docker and Podman, and two more. `BESIDE` is the number of processes that take the ids after its own.
const CONTAINER: &str = r#"set -e
mount -t tmpfs none "$0"
mount --bind /proc/sys /proc/sys
mount -o remount,bind,ro /proc/sys
for masked in /proc/kcore /proc/keys /proc/timer_list; do
    if [ -e $masked ]; then mount --bind /dev/null $masked; fi
done
for ((id = 0; id < ${BESIDE:-0}; id++)); do sleep 1000 >/dev/null 2>&1 & done
bounds=-all
for capability in chown dac_override fsetid fowner mknod net_raw setgid setuid setfcap setpcap net_bind_service sys_chroot \
    kill audit_write checkpoint_restore sys_ptrace; do
    bounds=$bounds,+$capability
done
exec setpriv --inh-caps=-all --bounding-set=$bounds "$@""#;
const OWN_NAMESPACES: [&str; 8] =
    ["unshare", "--mount", "--pid", "--ipc", "--fork", "--kill-child", "--mount-proc", "bash"];

/// The trials' names and ways.
pub(crate) fn trials() -> impl Iterator<Item = (&'static str, Scenario, &'static str)> {
    iter::once(("a_job_in_a_container_is_asked_for_there_and_restored_in_another_one", contained as Scenario, "shm"))
}

/// A checkpoint by pid from outside is refused, and the error names the command that works. Processes of the second container
/// have ids that processes of the first one had.
fn contained(paths: &Paths, way: &str) -> Result<()> {
    let stage = Stage { way: Way::Private { driver: driver_under_test() }, ..Stage::new(paths, way)? };
    let (go, image, folder) = (stage.image("go"), stage.image("image"), stage.image("run").display().to_string());
    let into = [&OWN_NAMESPACES[..], &["-c", CONTAINER, &folder]].concat();
    let fixture = paths.program("fixture", Variant::Static);
    let plan = Plan { arguments: &["saves", &go.to_string_lossy()], through: &into, ..Plan::default() };
    let mut job = Job::start(paths, &stage.home, &stage.way, JOB, &fixture, &plan)?;
    job.wait_for("ready")?;
    let is_fixture =
        |pid: &u32| fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|program| program.ends_with("fixture"));
    let program = tree(job.pid()).into_iter().find(is_fixture).context("the program does not run")?.to_string();
    let asks = |job: &str| {
        let mut command = katydid(paths, &["checkpoint", job, "-o"]);
        command.arg(&image).env("XDG_RUNTIME_DIR", &folder);
        command
    };
    let refused = run(&mut asks(&program), WAIT_TIMEOUT)?;
    let (errors, enter) = (refused.errors(), ["nsenter", "--target", &program, "--mount", "--pid"]);
    let is_told =
        errors.contains("another mount namespace") && errors.contains(&enter.join(" ")) && errors.contains(JOB);
    ensure!(!refused.status.success() && is_told, "{}", describe(&refused));
    let checkpoint_outcome = run(&mut through(&enter, &asks(JOB)), WAIT_TIMEOUT)?;
    ensure!(
        checkpoint_outcome.status.success(),
        "{}--- the job\n{}",
        describe(&checkpoint_outcome),
        job.errors_so_far()?
    );
    was_stopped(job)?;
    fs::write(&go, "")?;
    let plan = Plan { through: &into, variables: &[("BESIDE", "60")], ..Plan::default() };
    let restored = Job::restore(paths, &stage.home, &stage.way, JOB, &image, &plan)?;
    let outcome = restored.finish(CHECKPOINT_TIMEOUT)?;
    ensure!(outcome.status.success() && outcome.text() == "100\n", "{}", describe(&outcome));
    stage.is_clean()
}

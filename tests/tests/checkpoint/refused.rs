//! A refused checkpoint leaves a program with its session. Refusals concern processes that CRIU cannot dump, programs that
//! could not come back, and jobs of which a part would be missing. Each is tried in the middle of the program's steps, after
//! which the program comes to its end.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Result, bail, ensure};
use katydid_tests::catalog::Variant;
use katydid_tests::job::{Job, Plan};
use katydid_tests::paths::Paths;
use katydid_tests::program::{Outcome, run};
use katydid_tests::way::Way;
use rustix::fs::OFlags;
use rustix::process::{PidfdFlags, geteuid, getpid, pidfd_open};

use crate::scenarios::{LOOP, Scenario, went_on};
use crate::stage::{CHECKPOINT_TIMEOUT, Stage, WAY_NAMES, describe, two_hold_themselves};

/// A program that becomes what its argument says, and goes on.
const CHANGED: (&str, Variant) = ("changed_process", Variant::Static);
/// A frame in the middle of the program's steps.
const MIDDLE: u64 = 40;
/// Kinds for which a checkpoint may succeed or not, depending on CRIU.
const KINDS: [&str; 6] = ["raw", "memory", "stopped", "user", "root", "files"];

const ON_EVERY_WAY: [(&str, Scenario); 2] = [
    ("a_program_keeps_its_session_whatever_its_process_has_become", changed),
    ("a_process_that_the_job_does_not_know_is_named", unknown),
];

const ON_ONE_WAY: [(&str, Scenario); 5] = [
    ("a_program_that_cannot_leave_keeps_no_other_away", one_cannot_leave),
    ("one_task_of_several_is_refused_by_name", one_of_several),
    ("checkpoints_of_which_none_was_taken_are_no_success", none_taken),
    ("a_system_v_segment_is_refused_by_name", segment),
    ("what_criu_would_not_restore_is_refused_by_name", lost),
];
/// Scenarios over TCP alone: a server's socket in `/tmp` would be hidden from these programs too.
const BY_TCP: [(&str, Scenario); 1] = [("a_process_that_cannot_reach_the_job_is_named", unreachable)];
/// Kinds that CRIU does not dump, or dumps and does not restore, and words of the refusal. The first two refusals are CRIU's own.
const LOST_KINDS: [(&str, &str); 11] = [
    ("pidfd", "PIDFD_THREAD"),
    ("corked", "corked"),
    ("traced", "is traced by another process (ptrace)"),
    ("vforked", "shares memory with its parent (vfork, or clone with CLONE_VM)"),
    ("session", "is in a session whose leader has ended"),
    ("ended", "has ended in a session whose leader has ended too"),
    ("peer", "has a unix socket whose peer was another user"),
    ("mount", "has a mount namespace of its own"),
    ("network", "has a network namespace of its own"),
    // These go on between tries, so by the last one they may have read everything and ended.
    ("unsent", "no checkpoint"),
    ("events", "no checkpoint"),
];

/// The trials' names and ways.
pub(crate) fn trials() -> impl Iterator<Item = (&'static str, Scenario, &'static str)> {
    let every = ON_EVERY_WAY.iter().flat_map(|&(name, scenario)| WAY_NAMES.map(|way| (name, scenario, way)));
    let one = ON_ONE_WAY.iter().map(|&(name, scenario)| (name, scenario, "shm"));
    every.chain(one).chain(BY_TCP.iter().map(|&(name, scenario)| (name, scenario, "tcp")))
}

fn changed(paths: &Paths, way: &str) -> Result<()> {
    let stage = Stage::new(paths, way)?;
    let undisturbed = stage.start("undisturbed", CHANGED, &["none"], &[])?.finish(CHECKPOINT_TIMEOUT)?;
    ensure!(undisturbed.status.success(), "undisturbed: {}", describe(&undisturbed));
    let server_address = address(&stage)?;
    for kind in KINDS {
        for is_move in [false, true] {
            let what = if is_move { "a move" } else { "a checkpoint" };
            let mut job = stage.start("changed", CHANGED, &[kind], &[MIDDLE])?;
            ensure!(job.holds_itself()?, "{kind}: the job ended before its point");
            let mut command = if is_move {
                job.migrate_command(&server_address, &[])
            } else {
                job.checkpoint_command(&stage.image("image"), &["--leave-running"])
            };
            let answer = run(&mut command, CHECKPOINT_TIMEOUT)?;
            let is_sure = matches!(kind, "user" | "root" | "files") || (kind == "memory" && !is_move);
            ensure!(!is_sure || !answer.status.success(), "{kind}, {what}: it succeeded: {}", describe(&answer));
            let outcome = job.finish(CHECKPOINT_TIMEOUT)?;
            let is_whole = outcome.status.success() && outcome.stdout == undisturbed.stdout;
            ensure!(is_whole, "{kind}, after {what}: {}--- which answered\n{}", describe(&outcome), describe(&answer));
        }
    }
    stage.is_clean()
}

/// The same for an OpenCL program, which is first asked for a checkpoint and then for a move.
pub(crate) fn changed_opencl(paths: &Paths, way: &str) -> Result<()> {
    let stage = Stage::with_opencl(paths, way, &[])?;
    let server_address = address(&stage)?;
    let mut undisturbed = None;
    for kind in ["none"].iter().chain(&KINDS) {
        let plan = Plan { arguments: &[*kind], points: &[MIDDLE, MIDDLE + 20], ..Plan::default() };
        let mut job = stage.start_opencl("changed", CHANGED.0, &plan)?;
        if !job.holds_itself()? {
            bail!("{kind}: the program did not come to its point: {}", describe(&job.finish(CHECKPOINT_TIMEOUT)?));
        }
        let checkpoint = job.checkpoint(&stage.image("image"), &["--leave-running"])?;
        ensure!(job.holds_itself()?, "{kind}: the job ended before its second point: {}", describe(&checkpoint));
        let moved = run(&mut job.migrate_command(&server_address, &[]), CHECKPOINT_TIMEOUT)?;
        for answer in [&checkpoint, &moved] {
            let is_right = match *kind {
                "none" => answer.status.success(),
                "user" | "root" | "files" => !answer.status.success(),
                _ => true,
            };
            ensure!(is_right, "{kind}: {}", describe(answer));
        }
        let outcome = job.finish(CHECKPOINT_TIMEOUT)?;
        let expected = undisturbed.get_or_insert_with(|| outcome.text());
        let is_whole = outcome.status.success() && outcome.text() == *expected && expected.contains("step 59");
        ensure!(is_whole, "{kind}: {}--- it moved\n{}", describe(&outcome), describe(&moved));
    }
    stage.is_clean()
}

/// One of two programs may open no more files, and refuses to leave its worker. The other has left by then, and is brought back.
fn one_cannot_leave(paths: &Paths, way: &str) -> Result<()> {
    let stage = Stage::new(paths, way)?;
    let undisturbed = stage.start("undisturbed", CHANGED, &["none"], &[])?.finish(CHECKPOINT_TIMEOUT)?;
    let (output, server_address) = (stage.image("output"), address(&stage)?);
    let [changed, known] = [CHANGED, LOOP].map(|(name, variant)| paths.program(name, variant).display().to_string());
    let text = format!("'{changed}' files > '{}' & '{known}' && wait $!", output.display());
    let plan = Plan { arguments: &["-c", &text], points: &[MIDDLE, MIDDLE + 20], ..Plan::default() };
    let job = Job::start(paths, &stage.home, &stage.way, "two", Path::new("/bin/sh"), &plan)?;
    for is_move in [false, true] {
        two_hold_themselves(&job)?;
        let mut command = if is_move {
            job.migrate_command(&server_address, &[])
        } else {
            job.checkpoint_command(&stage.image("image"), &[])
        };
        let answer = run(&mut command, CHECKPOINT_TIMEOUT)?;
        is_refused(&answer, &[CHANGED.0, "it has no descriptors left for its way back"])?;
    }
    went_on(paths, job)?;
    let output = fs::read_to_string(output)?;
    ensure!(output == undisturbed.text(), "the one that refused: {output}");
    stage.is_clean()
}

/// Returns the address of the stage's server for programs.
fn address(stage: &Stage) -> Result<String> {
    match &stage.way {
        Way::Served { address, .. } => Ok(address.clone()),
        other => bail!("{other} has no address"),
    }
}

/// Checks that a request was refused with these words. The program then no longer holds itself, and comes to its next
/// point or its end.
pub(crate) fn is_refused(answer: &Outcome, texts: &[&str]) -> Result<()> {
    let errors = answer.errors();
    let has_all = texts.iter().all(|word| errors.contains(word));
    ensure!(!answer.status.success() && has_all, "not refused by {texts:?}: {}", describe(answer));
    Ok(())
}

/// A program started without the job's variable: alone, and beside a known one.
fn unknown(paths: &Paths, way: &str) -> Result<()> {
    let stage = Stage::new(paths, way)?;
    let (known, fixture) = (paths.program(LOOP.0, LOOP.1), paths.program("fixture", Variant::Static));
    let go = stage.image("go");
    let alone = format!("env -u KATYDID_JOB '{}' saves '{}'", fixture.display(), go.display());
    // A private root or `/tmp` may hide the job's folder from a program.
    let hide = r#"mount -t tmpfs none "$(dirname "$KATYDID_JOB")" && exec "$0" saves "$1""#;
    let hidden = format!("unshare --mount bash -c '{hide}' '{}' '{}'", fixture.display(), go.display());
    let (no_variable, no_socket) = ("KATYDID_JOB is not in its environment", "it cannot reach the job socket");
    let mut cases = vec![
        (alone.clone(), &[][..], no_variable),
        (format!("{alone} & '{}'; wait", known.display()), &[60], no_variable),
    ];
    cases.extend(Some((hidden, &[][..], no_socket)).filter(|_| geteuid().is_root()));
    for (text, points, reason) in cases {
        is_named(&stage, &text, points, reason, &go)?;
    }
    stage.is_clean()
}

/// A program whose user may not enter the job's folder, and a program with a private `/tmp`.
fn unreachable(paths: &Paths, way: &str) -> Result<()> {
    // Only root can become another user.
    if !geteuid().is_root() {
        return Ok(());
    }
    let (stage, fixture) = (Stage::new(paths, way)?, paths.program("fixture", Variant::Static));
    let shared = tempfile::tempdir_in("/var/tmp")?;
    fs::set_permissions(shared.path(), fs::Permissions::from_mode(0o755))?;
    let go = shared.path().join("go");
    let saves = format!("'{}' saves '{}'", fixture.display(), go.display());
    let other_user = format!("setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps=-all {saves}");
    let own_tmp = format!("unshare --mount bash -c \"mount -t tmpfs none /tmp && exec {saves}\"");
    for text in [other_user, own_tmp] {
        is_named(&stage, &text, &[], "it cannot reach the job socket", &go)?;
    }
    stage.is_clean()
}

/// Runs `command` as a job with a fixture that the job does not know, which waits for the file `go`; the refusal must name it.
/// If there are points, a member holds itself there.
fn is_named(stage: &Stage, command: &str, points: &[u64], reason: &str, go: &Path) -> Result<()> {
    let plan = Plan { arguments: &["-c", command], points, ..Plan::default() };
    let mut job = Job::start(&stage.paths, &stage.home, &stage.way, "unknown", Path::new("/bin/bash"), &plan)?;
    job.wait_for("ready")?;
    ensure!(points.is_empty() || job.holds_itself()?, "the job ended before its point");
    let answer = job.checkpoint(&stage.image("image"), &[])?;
    is_refused(&answer, &["fixture (process ", "is not a member of this job", reason])?;
    if points.is_empty() {
        let answer = run(&mut job.migrate_command(&address(stage)?, &[]), CHECKPOINT_TIMEOUT)?;
        is_refused(&answer, &["is not a member of this job"])?;
    }
    fs::write(go, "")?;
    let outcome = job.finish(CHECKPOINT_TIMEOUT)?;
    let text = outcome.text();
    let has_known = points.is_empty() || text.contains("PASS long_loop");
    ensure!(outcome.status.success() && text.contains("100\n") && has_known, "the job: {}", describe(&outcome));
    Ok(fs::remove_file(go)?)
}

/// A task with the variables of `srun -n 4`. Only the device's side may be saved.
fn one_of_several(paths: &Paths, way: &str) -> Result<()> {
    let stage = Stage::new(paths, way)?;
    let variables = [("SLURM_NTASKS", "4"), ("SLURM_STEP_NUM_TASKS", "4"), ("SLURM_PROCID", "2")];
    let plan = Plan { points: &[60, 70], variables: &variables, ..Plan::default() };
    let mut job = stage.start_by("task", LOOP, &plan)?;
    ensure!(job.holds_itself()?, "the job ended before its point");
    stage.checkpoint(&job, "device", &["--device-only"])?;
    ensure!(job.holds_itself()?, "the job ended before its second point");
    let answer = job.checkpoint(&stage.image("image"), &[])?;
    is_refused(&answer, &["one of several tasks", "SLURM_STEP_NUM_TASKS=4"])?;
    went_on(paths, job)?;
    stage.is_clean()
}

fn none_taken(paths: &Paths, way: &str) -> Result<()> {
    let stage = Stage::new(paths, way)?;
    let plan = Plan { points: &[60], variables: &[("PMI_SIZE", "2")], ..Plan::default() };
    let mut job = stage.start_by("task", LOOP, &plan)?;
    ensure!(job.holds_itself()?, "the job ended before its point");
    let answer = run(&mut job.checkpoint_command(&stage.image("image"), &["--every", "1s"]), CHECKPOINT_TIMEOUT)?;
    is_refused(&answer, &["PMI_SIZE=2"])?;
    went_on(paths, job)?;
    stage.is_clean()
}

fn segment(paths: &Paths, way: &str) -> Result<()> {
    let stage = Stage::new(paths, way)?;
    let mut job = stage.start("segment", CHANGED, &["segment"], &[MIDDLE])?;
    ensure!(job.holds_itself()?, "the job ended before its point");
    let answer = job.checkpoint(&stage.image("image"), &[])?;
    is_refused(&answer, &[CHANGED.0, "System V shared memory segment"])?;
    let outcome = job.finish(CHECKPOINT_TIMEOUT)?;
    ensure!(outcome.status.success(), "the program: {}", describe(&outcome));
    stage.is_clean()
}

/// Each of them would be lost by a checkpoint that ends the job.
fn lost(paths: &Paths, way: &str) -> Result<()> {
    let stage = Stage::new(paths, way)?;
    for (kind, texts) in LOST_KINDS {
        if kind == "pidfd" && !has_thread_pidfds() {
            continue;
        }
        let mut job = stage.start(kind, CHANGED, &[kind], &[MIDDLE])?;
        if !job.holds_itself()? {
            let outcome = job.finish(CHECKPOINT_TIMEOUT)?;
            bail!("{kind}: the program did not come to its point: {}", describe(&outcome));
        }
        let answer = job.checkpoint(&stage.image("image"), &[])?;
        is_refused(&answer, &[texts])?;
        let outcome = job.finish(CHECKPOINT_TIMEOUT)?;
        ensure!(outcome.status.success(), "{kind}: {}", describe(&outcome));
    }
    stage.is_clean()
}

/// Whether the kernel has descriptors of threads (Linux 6.9).
fn has_thread_pidfds() -> bool {
    pidfd_open(getpid(), PidfdFlags::from_bits_retain(OFlags::EXCL.bits())).is_ok()
}

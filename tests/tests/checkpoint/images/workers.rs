//! Sessions that no replay brings back, saved as the processes of their workers. `KATYDID_FAULT=no-replay` makes every
//! rehearsal of a supervisor fail in that way, on any driver.

use std::ffi::OsString;
use std::fs;
use std::panic::resume_unwind;
use std::path::Path;
use std::thread;

use anyhow::{Context, Result, ensure};
use katydid_tests::catalog::{App, Variant};
use katydid_tests::job::{Job, Plan};
use katydid_tests::paths::{Paths, driver_under_test};
use katydid_tests::server::Server;
use katydid_tests::trial;
use katydid_tests::verdict::expected_path;
use katydid_tests::watch::{runs, tree, until};
use katydid_tests::way::Way;
use libtest_mimic::Trial;
use serde_json::Value;

use crate::programs::show;
use crate::scenarios::{LOOP, Scenario, expected_of_loop, images, was_stopped, went_on};
use crate::stage::{CHECKPOINT_TIMEOUT, Stage, continues, describe, expected_of, way_to};

const NO_REPLAY: Option<&str> = Some("no-replay");
/// Frames at which programs are checkpointed, each time in the worker that the previous checkpoint has brought back.
const POINTS: [u64; 2] = [8, 40];
/// Programs that keep one kind of state each.
const PROGRAMS: [&str; 13] = [
    "long_loop",
    "kept_arrays",
    "kept_attributes",
    "kept_callbacks",
    "kept_events",
    "kept_graphs",
    "kept_green",
    "kept_host_memory",
    "kept_modules",
    "kept_pointers",
    "kept_pools",
    "kept_symbols",
    "kept_threads",
];
/// The word for programs saved as processes in a test's name.
pub(crate) const VARIANT: &str = "kept_as_a_process";

/// The scenarios' names and ways.
pub(crate) fn scenarios() -> impl Iterator<Item = (&'static str, Scenario, &'static str)> {
    const ON_TWO_WAYS: [(&str, Scenario); 3] = [
        ("a_worker_kept_as_a_process_goes_on_if_the_checkpoint_fails", failed),
        ("a_supervisor_killed_while_its_workers_are_kept_leaves_none_and_no_checkpoint", supervisor_killed),
        ("a_worker_kept_as_a_process_is_restored_twice_at_once", twice),
    ];
    const ON_ONE_WAY: [(&str, Scenario, &str); 6] = [
        ("a_variable_that_is_pointed_to_comes_back_with_a_worker_kept_as_a_process", pointed, "shm"),
        ("a_worker_kept_as_a_process_serves_another_server", another_server, "shm"),
        ("a_worker_of_a_private_server_is_kept_as_a_process", private, "shm"),
        ("no_worker_of_a_server_of_several_users_is_kept_as_a_process", tenants, "shm"),
        ("no_worker_is_kept_as_a_process_for_a_peer_over_a_network", over_a_network, "tcp"),
        ("a_worker_not_kept_as_a_process_for_want_of_criu_goes_on", without_criu, "shm"),
    ];
    let two = ON_TWO_WAYS.into_iter().flat_map(|(name, scenario)| ["shm", "tcp"].map(|way| (name, scenario, way)));
    two.chain(ON_ONE_WAY)
}

/// Returns a test for each program and way.
pub(crate) fn trials(paths: &Paths, apps: &[App]) -> Vec<Trial> {
    let found = PROGRAMS.iter().filter_map(|name| apps.iter().find(|app| app.name == *name));
    let each = found.flat_map(|app| ["shm", "tcp"].map(|way| (app, way)));
    let trial = |(app, way): (&App, &'static str)| {
        let (paths, name, variant) = (paths.clone(), app.name.clone(), app.variants()[0]);
        let is_missing = paths.why_not_built(&name, variant).is_some();
        let trial = trial::test(format!("{way}::{VARIANT}::{name}"), move || {
            program(&paths, way, (&name, variant)).map_err(show)
        });
        trial.with_ignored_flag(is_missing)
    };
    each.map(trial).collect()
}

/// Options that let a server save workers as processes although it also listens on TCP.
const OPEN: [&str; 2] = ["--no-sandbox", "--allow-worker-images"];

fn open_stage(paths: &Paths, way: &str) -> Result<Stage> {
    Stage::with_flags(paths, way, &OPEN, &[])
}

fn plan<'a>(points: &'a [u64]) -> Plan<'a> {
    Plan { points, fault: NO_REPLAY, ..Plan::default() }
}

/// Checkpoints a job, which ends. The image keeps its worker's process, and the report says so. Returns the bytes
/// of output until then.
fn checkpoint_as_process(stage: &Stage, job: Job<'_>, image: &str) -> Result<usize> {
    let outcome = job.checkpoint(&stage.image(image), &[])?;
    let (server, errors) = (stage.server.log(), job.errors_so_far()?);
    ensure!(
        outcome.status.success(),
        "the checkpoint failed: {}--- the job\n{errors}--- the server\n{server}",
        describe(&outcome)
    );
    let view: Value = serde_json::from_str(&outcome.text())?;
    let sessions = view["worker_images"].as_array().map_or(0, Vec::len);
    ensure!(sessions > 0, "no worker was kept as a process: {}", describe(&outcome));
    ensure!(
        outcome.errors().contains("is kept as the process of its worker"),
        "it says nothing: {}",
        describe(&outcome)
    );
    let written = job.output_so_far()?.len();
    was_stopped(job)?;
    Ok(written)
}

/// A chain: each checkpoint is taken of the job that was restored from the previous one.
fn program(paths: &Paths, way: &str, program: (&str, Variant)) -> Result<()> {
    let stage = open_stage(paths, way)?;
    let expected = fs::read_to_string(expected_path(paths, program.0)?).context("cannot read the kept output")?;
    let mut job = stage.start_by("job", program, &plan(&POINTS))?;
    let (mut written, mut checkpoint_count) = (0, 0);
    for _ in POINTS {
        if !job.holds_itself()? {
            break;
        }
        written += checkpoint_as_process(&stage, job, "image")?;
        checkpoint_count += 1;
        let verified = images(paths, "verify", &stage.image("image"))?;
        ensure!(verified.status.success(), "the image: {}", describe(&verified));
        job = stage.restore_by("job", "image", &plan(&POINTS))?;
    }
    ensure!(checkpoint_count > 0, "it ended before its first point");
    let outcome = job.finish(CHECKPOINT_TIMEOUT)?;
    continues(&expected, (written, written), &outcome)
        .with_context(|| format!("the server said: {}", stage.server.log()))?;
    stage.is_clean()
}

/// Starts the loop, and waits until it comes to its point.
fn looped<'a>(stage: &'a Stage, fault: &str) -> Result<Job<'a>> {
    looped_to(stage, fault, &[60])
}

/// Starts the loop with these points, and waits until it comes to the first.
fn looped_to<'a>(stage: &'a Stage, fault: &str, points: &[u64]) -> Result<Job<'a>> {
    let mut job = stage.start_by("loop", LOOP, &Plan { points, fault: Some(fault), ..Plan::default() })?;
    ensure!(job.holds_itself()?, "the job ended before its point: {}", job.errors_so_far()?);
    Ok(job)
}

/// Checks that the checkpoint is refused for this reason, and that the job goes on.
fn goes_on(paths: &Paths, stage: &Stage, job: Job<'_>, reason: &str) -> Result<()> {
    let outcome = job.checkpoint(&stage.image("image"), &[])?;
    ensure!(outcome.status.code() == Some(1) && outcome.errors().contains(reason), "{}", describe(&outcome));
    went_on(paths, job).with_context(|| format!("the server said: {}", stage.server.log()))?;
    stage.is_clean()
}

/// Stages between the suspend of a worker and the commit.
const STAGES: [&str; 3] = ["suspend", "keep_workers", "commit"];

fn failed(paths: &Paths, way: &str) -> Result<()> {
    for stage in STAGES {
        let it = open_stage(paths, way)?;
        let job = looped(&it, &format!("no-replay,{stage}"))?;
        goes_on(paths, &it, job, &format!("a failure at stage {stage}")).with_context(|| stage.to_owned())?;
    }
    Ok(())
}

/// The program ends with its supervisor, as one without a worker image does, and the previous checkpoint is restored.
fn supervisor_killed(paths: &Paths, way: &str) -> Result<()> {
    // In parallel: each waits for a worker that waits for another supervisor.
    thread::scope(|scope| {
        let kill = |at| scope.spawn(move || killed_at(paths, way, &format!("no-replay,{at}:kill")));
        STAGES.map(|at| (at, kill(at))).into_iter().try_for_each(|(at, killed)| {
            let outcome = killed.join().unwrap_or_else(|panic| resume_unwind(panic));
            outcome.with_context(|| format!("killed at {at}"))
        })
    })
}

fn killed_at(paths: &Paths, way: &str, fault: &str) -> Result<()> {
    let stage = open_stage(paths, way)?;
    let mut job = stage.start("loop", LOOP, &[], &[60, 90])?;
    ensure!(job.holds_itself()?, "the job ended before its point");
    let written = job.output_so_far()?.len();
    stage.checkpoint(&job, "image", &["--leave-running"])?;
    job.kill_everything(&stage.server)?;
    drop(job);
    let plan = Plan { points: &[60, 90], fault: Some(fault), ..Plan::default() };
    let mut job = stage.restore_by("loop", "image", &plan)?;
    ensure!(job.holds_itself()?, "the restored job ended before its point: {}", job.errors_so_far()?);
    let worker = stage.server.workers_of(1)?;
    let processes = [tree(job.pid()), worker].concat();
    let outcome = job.checkpoint(&stage.image("image"), &[])?;
    ensure!(!outcome.status.success(), "the checkpoint succeeded: {}", describe(&outcome));
    until("program and worker are gone", || !processes.iter().any(|pid| runs(*pid)))
        .with_context(|| format!("the server said: {}", stage.server.log()))?;
    drop(job);
    stage.server.workers_of(0)?;
    let second = stage.image("image").join("checkpoints/000002/manifest.json");
    ensure!(!second.exists(), "there is a second checkpoint");
    let verified = images(paths, "verify", &stage.image("image"))?;
    ensure!(verified.status.success(), "the image: {}", describe(&verified));
    let outcome = stage.restore("loop", "image", &[])?.finish(CHECKPOINT_TIMEOUT)?;
    continues(&expected_of_loop(paths)?, (written, written), &outcome)?;
    stage.is_clean()
}

/// A replay would be refused: the program has the address of a variable, and other workers put the variable elsewhere.
fn pointed(paths: &Paths, way: &str) -> Result<()> {
    const STEPS: [&str; 2] = ["30", "told"];
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("bytes");
    fs::write(&file, "4096\n")?;
    let server = Server::start_with(paths, "soft", &OPEN, &[("KATYDID_SOFT_DISPLACE", file.clone().into())])?;
    let stage = Stage { way: way_to(way, &server)?, server, ..open_stage(paths, way)? };
    let program = ("kept_variables", Variant::Plain);
    let undisturbed = stage.start("undisturbed", program, &STEPS, &[])?.finish(CHECKPOINT_TIMEOUT)?;
    ensure!(undisturbed.status.success(), "undisturbed: {}", describe(&undisturbed));
    let mut job = stage.start("told", program, &STEPS, &[40])?;
    ensure!(job.holds_itself()?, "the job ended before its point: {}", job.errors_so_far()?);
    fs::write(&file, "8192\n")?;
    let written = checkpoint_as_process(&stage, job, "image")?;
    let outcome = stage.restore("told", "image", &[])?.finish(CHECKPOINT_TIMEOUT)?;
    continues(&undisturbed.text(), (written, written), &outcome)?;
    stage.is_clean()
}

fn tenants(paths: &Paths, way: &str) -> Result<()> {
    let stage = Stage::new(paths, way)?;
    let job = looped(&stage, "no-replay")?;
    goes_on(paths, &stage, job, "workers of this server run in a sandbox")
}

fn over_a_network(paths: &Paths, way: &str) -> Result<()> {
    let stage = Stage::with_flags(paths, way, &["--no-sandbox"], &[])?;
    let job = looped(&stage, "no-replay")?;
    goes_on(paths, &stage, job, "keeps no worker as a process for programs that connect by TCP")
}

fn without_criu(paths: &Paths, way: &str) -> Result<()> {
    let none: [(&'static str, OsString); 1] = [("KATYDID_CRIU", "/bin/false".into())];
    let stage = Stage::with_flags(paths, way, &OPEN, &none)?;
    let job = looped(&stage, "no-replay")?;
    goes_on(paths, &stage, job, "its worker was not kept as a process instead")
}

/// The second restore finds the worker's ids taken, and gets namespaces of its own.
fn twice(paths: &Paths, way: &str) -> Result<()> {
    let stage = open_stage(paths, way)?;
    let written = checkpoint_as_process(&stage, looped_to(&stage, "no-replay", &[60, 90])?, "image")?;
    let mut first = stage.restore_by("loop", "image", &plan(&[90]))?;
    ensure!(first.holds_itself()?, "the first one ended: {}", first.errors_so_far()?);
    let second = stage.restore("loop", "image", &[])?.finish(CHECKPOINT_TIMEOUT)?;
    if driver_under_test() == "soft" {
        continues(&expected_of_loop(paths)?, (written, written), &second).context("the second")?;
    } else {
        // NVIDIA's driver has a unix socket whose name the kernel chose, and CRIU restores it with that name.
        let is_refused = !second.status.success() && second.errors().contains("Address already in use");
        ensure!(is_refused, "the second: {}", describe(&second));
    }
    // It goes on without a checkpoint, which its supervisor allows.
    drop(first);
    stage.is_clean()
}

fn another_server(paths: &Paths, way: &str) -> Result<()> {
    let mut stage = open_stage(paths, way)?;
    let written = checkpoint_as_process(&stage, looped(&stage, "no-replay")?, "image")?;
    let server = Server::start(paths, &driver_under_test(), &OPEN)?;
    stage.way = Way::through(&server)[0].clone();
    stage.server = server;
    let outcome = stage.restore("loop", "image", &[])?.finish(CHECKPOINT_TIMEOUT)?;
    continues(&expected_of_loop(paths)?, (written, written), &outcome)?;
    stage.is_clean()
}

fn private(paths: &Paths, way: &str) -> Result<()> {
    let mut stage = Stage::new(paths, way)?;
    stage.way = Way::Private { driver: driver_under_test() };
    let written = checkpoint_as_process(&stage, looped(&stage, "no-replay")?, "image")?;
    let outcome = stage.restore("loop", "image", &[])?.finish(CHECKPOINT_TIMEOUT)?;
    continues(&expected_of(paths, LOOP.0)?, (written, written), &outcome)?;
    ensure!(has_worker(&stage.image("image"))?, "the manifest names no worker");
    stage.is_clean()
}

/// Whether the manifest of the first checkpoint has a worker image.
fn has_worker(image: &Path) -> Result<bool> {
    let manifest: Value = serde_json::from_slice(&fs::read(image.join("checkpoints/000001/manifest.json"))?)?;
    Ok(manifest["content"]["sessions"][0]["worker"]["files"].as_array().is_some_and(|files| !files.is_empty()))
}

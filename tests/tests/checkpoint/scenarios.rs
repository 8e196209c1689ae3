//! Events around checkpoints and restores: chains, two restores of one image, other servers, full disks, damaged images, kills
//! at every stage. After each, the program has gone on, the last good image is intact, and nothing is left behind.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use katydid_tests::catalog::Variant;
use katydid_tests::commands::katydid;
use katydid_tests::job::{CHECKPOINTED_EXIT_STATUS, Job, Plan};
use katydid_tests::paths::{Paths, driver_under_test};
use katydid_tests::program::{self, Outcome, Running};
use katydid_tests::server::Server;
use katydid_tests::trial;
use katydid_tests::verdict::expected_path;
use katydid_tests::watch::{WAIT_TIMEOUT, runs, tree, until};
use katydid_tests::way::Way;
use libtest_mimic::Trial;

use crate::images::{damage, stores, upgrades, workers};
use crate::kills::{chaos, departures, failover, moves, restores};
use crate::outside::{containers, here_documents, modes, names, streams, surroundings};
use crate::stage::{CHECKPOINT_TIMEOUT, Stage, WAY_NAMES, continues, describe};
use crate::{descriptors, held_locks, idle, ipc_memory, jobs, processes, refused, signals, tls, variables};

pub(crate) type Scenario = fn(&Paths, &str) -> Result<()>;

/// Scenarios that run on every way.
const ON_EVERY_WAY: [(&str, Scenario); 4] = [
    ("a_chain_of_ten_checkpoints_each_restored", a_chain_of_ten),
    ("a_chain_of_restores_each_checkpointed_at_its_first_calls", a_chain_of_restores),
    ("one_image_restored_twice_at_once", restored_twice),
    ("a_kill_at_any_stage_leaves_program_and_image_whole", kills_at_every_stage),
];

/// Scenarios for which the way does not matter.
const ON_ONE_WAY: [(&str, Scenario); 12] = [
    ("another_server_takes_a_session_over", another_server),
    ("a_private_server_is_restored_with_the_program", a_private_server),
    ("a_second_checkpoint_adds_what_changed", what_changed),
    ("large_copies_leave_nothing_in_the_image_of_the_program", large_copies),
    ("devices_are_chosen_for_programs_of_opencl_only", no_devices),
    ("a_full_disk_is_an_error_and_the_program_goes_on", a_full_disk),
    ("damaged_images_are_refused_and_leave_nothing_behind", damaged_images),
    ("a_kernel_that_does_not_end_is_named", a_stuck_kernel),
    ("a_checkpoint_during_the_first_kernel_of_a_restore", during_the_first_kernel),
    ("a_program_may_end_before_it_is_back_with_its_worker", a_quick_end),
    ("a_checkpoint_of_the_gpu_alone_leaves_the_program_running", device_only),
    ("without_rights_the_gpu_alone_is_saved_and_no_program", without_rights),
];

/// Stages of a checkpoint, as the control socket names them, at which a process may die.
const STAGES: [&str; 10] =
    ["prepare", "hold", "pause", "capture", "leave", "dump", "resume", "write", "rehearse", "commit"];

/// The program of most scenarios.
pub(crate) const LOOP: (&str, Variant) = ("long_loop", Variant::Static);

pub(crate) fn trials(paths: &Paths) -> Vec<Trial> {
    let every = ON_EVERY_WAY.iter().flat_map(|&(name, scenario)| WAY_NAMES.map(|way| (name, scenario, way)));
    let one = ON_ONE_WAY.iter().map(|&(name, scenario)| (name, scenario, "shm"));
    let trial = |(name, scenario, way): (&str, Scenario, &'static str)| {
        let (paths, is_missing) = (paths.clone(), jobs::is_missing(paths, name));
        let trial = trial::test(format!("{way}::{name}"), move || {
            scenario(&paths, way).map_err(|error| format!("{error:#}").into())
        });
        trial.with_ignored_flag(is_missing)
    };
    every
        .chain(one)
        .chain(held_locks::trials())
        .chain(chaos::trials())
        .chain(damage::trials())
        .chain(departures::trials())
        .chain(descriptors::trials())
        .chain(failover::trials())
        .chain(idle::trials())
        .chain(jobs::trials())
        .chain(ipc_memory::trials())
        .chain(here_documents::trials())
        .chain(containers::trials())
        .chain(modes::trials())
        .chain(moves::trials())
        .chain(names::trials())
        .chain(processes::trials())
        .chain(refused::trials())
        .chain(restores::trials())
        .chain(signals::trials())
        .chain(tls::trials())
        .chain(stores::trials())
        .chain(streams::trials())
        .chain(surroundings::trials())
        .chain(upgrades::trials())
        .chain(variables::trials())
        .chain(workers::scenarios())
        .map(trial)
        .collect()
}

/// Returns what the loop prints in an undisturbed run.
pub(crate) fn expected_of_loop(paths: &Paths) -> Result<String> {
    fs::read_to_string(expected_path(paths, LOOP.0)?).context("cannot read the kept output")
}

/// Checks that the job has ended with its checkpoint.
pub(crate) fn was_stopped(job: Job<'_>) -> Result<()> {
    let outcome = job.finish(CHECKPOINT_TIMEOUT)?;
    ensure!(outcome.status.code() == Some(CHECKPOINTED_EXIT_STATUS), "a job that was stopped: {}", describe(&outcome));
    Ok(())
}

/// Checks that the job came to its end as if nothing had happened.
pub(crate) fn went_on(paths: &Paths, job: Job<'_>) -> Result<()> {
    let (expected, outcome) = (expected_of_loop(paths)?, job.finish(CHECKPOINT_TIMEOUT)?);
    ensure!(
        outcome.status.success() && outcome.text() == expected,
        "the program that should have gone on: {}",
        describe(&outcome)
    );
    Ok(())
}

pub(crate) fn images(paths: &Paths, action: &str, image: &Path) -> Result<Outcome> {
    Ok(program::run(katydid(paths, &["images", action]).arg(image), WAIT_TIMEOUT)?)
}

fn a_chain_of_ten(paths: &Paths, way: &str) -> Result<()> {
    let stage = Stage::new(paths, way)?;
    let points: Vec<u64> = (1..=10).map(|step| step * 11).collect();
    let mut job = stage.start("chain", LOOP, &[], &points)?;
    let mut checkpoints = Vec::new();
    while job.holds_itself()? {
        let bytes_before = job.output_so_far()?.len();
        checkpoints.push((stage.checkpoint(&job, "image", &["--leave-running"])?, bytes_before));
    }
    went_on(paths, job)?;
    ensure!(checkpoints.len() == points.len(), "{} checkpoints for {} points", checkpoints.len(), points.len());
    let expected = expected_of_loop(paths)?;
    for (checkpoint, bytes_before) in checkpoints {
        let number = checkpoint.number.to_string();
        let outcome = stage.restore("chain", "image", &["--at", &number])?.finish(CHECKPOINT_TIMEOUT)?;
        continues(&expected, (bytes_before, bytes_before), &outcome).with_context(|| format!("checkpoint {number}"))?;
    }
    stage.is_clean()
}

/// The points are consecutive frames: a restored program comes to the next one with its first frame.
pub(crate) fn a_chain_of_restores(paths: &Paths, way: &str) -> Result<()> {
    let stage = Stage::new(paths, way)?;
    let points = [40, 41, 42, 43];
    let mut job = stage.start("relay", LOOP, &[], &points)?;
    let mut written = 0;
    for at in points {
        ensure!(job.holds_itself()?, "the job ended before frame {at}");
        stage.checkpoint(&job, "image", &[])?;
        written += job.output_so_far()?.len();
        was_stopped(job)?;
        job = stage.restore_by("relay", "image", &Plan { points: &points, ..Plan::default() })?;
    }
    let outcome = job.finish(CHECKPOINT_TIMEOUT)?;
    continues(&expected_of_loop(paths)?, (written, written), &outcome)?;
    stage.is_clean()
}

/// Both restored jobs run at once. Each has checkpoints of its own, also after the other has ended.
fn restored_twice(paths: &Paths, way: &str) -> Result<()> {
    let stage = Stage::new(paths, way)?;
    let points = [50, 70];
    let mut job = stage.start("again", LOOP, &[], &points)?;
    ensure!(job.holds_itself()?, "the job ended before its point");
    stage.checkpoint(&job, "image", &[])?;
    let written = job.output_so_far()?.len();
    was_stopped(job)?;
    let expected = expected_of_loop(paths)?;
    let plan = Plan { points: &points, ..Plan::default() };
    let mut jobs = Vec::new();
    for name in ["again", "again-2"] {
        let mut job = stage.restore_by(name, "image", &plan)?;
        ensure!(job.holds_itself()?, "{name} ended before its point");
        jobs.push((job, name));
    }
    for (job, name) in jobs {
        stage.checkpoint(&job, name, &["--leave-running"])?;
        continues(&expected, (written, written), &job.finish(CHECKPOINT_TIMEOUT)?).with_context(|| name.to_owned())?;
    }
    for name in ["again", "again-2"] {
        let outcome = stage.restore(name, name, &[])?.finish(CHECKPOINT_TIMEOUT)?;
        ensure!(
            outcome.status.success() && expected.ends_with(&outcome.text()),
            "{name} again: {}",
            describe(&outcome)
        );
    }
    stage.is_clean()
}

/// At each stage the supervisor fails, and in another run it dies.
fn kills_at_every_stage(paths: &Paths, way: &str) -> Result<()> {
    for at in STAGES {
        for how in ["", ":kill"] {
            one_fault(paths, way, &format!("{at}{how}")).with_context(|| format!("a fault at {at}{how}"))?;
        }
    }
    Ok(())
}

fn one_fault(paths: &Paths, way: &str, fault: &str) -> Result<()> {
    let stage = Stage::new(paths, way)?;
    let mut job = stage.start_by("faulty", LOOP, &Plan { points: &[60], fault: Some(fault), ..Plan::default() })?;
    ensure!(job.holds_itself()?, "the job ended before its point");
    let processes = tree(job.pid());
    let outcome = job.checkpoint(&stage.image("image"), &["--leave-running"])?;
    ensure!(!outcome.status.success(), "the checkpoint succeeded: {}", describe(&outcome));
    let mut checkpoints = fs::read_dir(stage.image("image").join("checkpoints")).into_iter().flatten().flatten();
    // Where no checkpoint was completed, there is nothing to restore, and verify says so.
    let has_any = checkpoints.any(|folder| folder.path().join("manifest.json").exists());
    let outcome = images(paths, "verify", &stage.image("image"))?;
    ensure!(outcome.status.success() == has_any, "the image is damaged, or none: {}", describe(&outcome));
    if !fault.ends_with(":kill") {
        went_on(paths, job)?;
        return stage.is_clean();
    }
    // The program ends with its supervisor, even if it is stopped or has left its worker.
    until("the program is gone", || !processes.iter().any(|pid| runs(*pid)))?;
    Ok(stage.server.workers_of(0).map(drop)?)
}

fn another_server(paths: &Paths, way: &str) -> Result<()> {
    let mut stage = Stage::new(paths, way)?;
    let mut job = stage.start("moved", LOOP, &[], &[70])?;
    ensure!(job.holds_itself()?, "the job ended before its point");
    stage.checkpoint(&job, "image", &[])?;
    let written = job.output_so_far()?.len();
    was_stopped(job)?;
    // The old server ends only now, so that no address is used twice.
    let server = Server::start(paths, &driver_under_test(), &[])?;
    stage.way = Way::through(&server)[0].clone();
    stage.server = server;
    let outcome = stage.restore("moved", "image", &[])?.finish(CHECKPOINT_TIMEOUT)?;
    continues(&expected_of_loop(paths)?, (written, written), &outcome)?;
    stage.is_clean()
}

fn a_private_server(paths: &Paths, way: &str) -> Result<()> {
    let mut stage = Stage::new(paths, way)?;
    stage.way = Way::Private { driver: driver_under_test() };
    let mut job = stage.start("private", LOOP, &[], &[33])?;
    ensure!(job.holds_itself()?, "the job ended before its point");
    stage.checkpoint(&job, "image", &[])?;
    let written = job.output_so_far()?.len();
    was_stopped(job)?;
    let outcome = stage.restore("private", "image", &[])?.finish(CHECKPOINT_TIMEOUT)?;
    continues(&expected_of_loop(paths)?, (written, written), &outcome)?;
    stage.is_clean()
}

/// 48 MiB that stay the same, and one small field that changes.
fn what_changed(paths: &Paths, way: &str) -> Result<()> {
    let stage = Stage::new(paths, way)?;
    let mut job = stage.start("heavy", LOOP, &["60", "0", "48"], &[60, 90])?;
    let mut added = Vec::new();
    while job.holds_itself()? {
        added.push(stage.checkpoint(&job, "image", &["--leave-running"])?.added);
    }
    went_on(paths, job)?;
    ensure!(added.len() == 2, "{} checkpoints for 2 points", added.len());
    ensure!(added[0] >= 48 << 20, "the first checkpoint added {} bytes", added[0]);
    ensure!(added[1] <= 8 << 20, "the second checkpoint added {} bytes", added[1]);
    let outcome = stage.restore("heavy", "image", &[])?.finish(CHECKPOINT_TIMEOUT)?;
    ensure!(outcome.status.success(), "{}", describe(&outcome));
    stage.is_clean()
}

/// No dump contains what passes through the staging area. With and without copies of 48 MiB, the program's part has the same
/// size, but for some pages, and both come to the same end.
fn large_copies(paths: &Paths, way: &str) -> Result<()> {
    const SOME_PAGES: u64 = 1 << 20;
    let stage = Stage::new(paths, way)?;
    let mut parts = Vec::new();
    for (name, ballast) in [("light", "0"), ("heavy", "48")] {
        let mut job = stage.start(name, LOOP, &["60", "0", ballast], &[90])?;
        ensure!(job.holds_itself()?, "the job ended before its point");
        let written = job.output_so_far()?.len();
        parts.push(stage.checkpoint(&job, name, &[])?.files);
        was_stopped(job)?;
        let outcome = stage.restore(name, name, &[])?.finish(CHECKPOINT_TIMEOUT)?;
        continues(&expected_of_loop(paths)?, (written, written), &outcome).context(name)?;
    }
    ensure!(parts[1] <= parts[0] + SOME_PAGES, "the parts of the program: {parts:?} bytes");
    stage.is_clean()
}

/// A job without an OpenCL session has no devices to choose.
fn no_devices(paths: &Paths, way: &str) -> Result<()> {
    let stage = Stage::new(paths, way)?;
    let mut job = stage.start("plain", LOOP, &[], &[60])?;
    ensure!(job.holds_itself()?, "the job ended before its point");
    let written = job.output_so_far()?.len();
    stage.checkpoint(&job, "image", &[])?;
    was_stopped(job)?;
    let outcome = stage.restore("plain", "image", &["--device", "0"])?.finish(CHECKPOINT_TIMEOUT)?;
    let is_named = outcome.errors().contains("--device");
    ensure!(!outcome.status.success() && outcome.text().is_empty() && is_named, "{}", describe(&outcome));
    stage.is_clean()?;
    continues(
        &expected_of_loop(paths)?,
        (written, written),
        &stage.restore("plain", "image", &[])?.finish(CHECKPOINT_TIMEOUT)?,
    )?;
    stage.is_clean()
}

/// A file system of a few MiB, unmounted on drop.
pub(crate) struct SmallFileSystem<'a>(&'a Path);

impl<'a> SmallFileSystem<'a> {
    pub(crate) fn mount(folder: &'a Path) -> Result<Self> {
        Self::mount_of(folder, "24m")
    }

    pub(crate) fn mount_of(folder: &'a Path, size: &str) -> Result<Self> {
        fs::create_dir(folder)?;
        let mut mount = Command::new("mount");
        let outcome =
            program::run(mount.args(["-t", "tmpfs", "-o", &format!("size={size}"), "none"]).arg(folder), WAIT_TIMEOUT)?;
        ensure!(outcome.status.success(), "{}", describe(&outcome));
        Ok(Self(folder))
    }
}

impl Drop for SmallFileSystem<'_> {
    fn drop(&mut self) {
        // A busy file system stays mounted until the user removes this process' folder; there is no one to tell.
        let _ = Command::new("umount").arg(self.0).status();
    }
}

fn a_full_disk(paths: &Paths, way: &str) -> Result<()> {
    let stage = Stage::new(paths, way)?;
    let folder = stage.image("small");
    let small = SmallFileSystem::mount(&folder)?;
    let mut job = stage.start("full", LOOP, &["60", "0", "48"], &[70])?;
    ensure!(job.holds_itself()?, "the job ended before its point");
    let outcome = job.checkpoint(&folder.join("image"), &["--leave-running"])?;
    ensure!(!outcome.status.success(), "it fits: {}", describe(&outcome));
    // In the words of the process that ran out of space: the worker, or CRIU.
    let is_named =
        ["no free space for the image", "No space left on device"].iter().any(|words| outcome.errors().contains(words));
    ensure!(is_named, "the reason is not named: {}", describe(&outcome));
    went_on(paths, job)?;
    drop(small);
    stage.is_clean()
}

fn damaged_images(paths: &Paths, way: &str) -> Result<()> {
    let stage = Stage::new(paths, way)?;
    let mut job = stage.start("damaged", LOOP, &[], &[45])?;
    ensure!(job.holds_itself()?, "the job ended before its point");
    stage.checkpoint(&job, "image", &[])?;
    let written = job.output_so_far()?.len();
    was_stopped(job)?;
    let image = stage.image("image");
    for path in files_below(&image)? {
        let name = path.strip_prefix(&image)?.display().to_string();
        // The lock only locks, and `latest` is for people: nothing reads either.
        if ["lock", "latest"].contains(&name.as_str()) {
            continue;
        }
        let good = fs::read(&path)?;
        let mut bad = good.clone();
        let middle = bad.len() / 2;
        match bad.get_mut(middle) {
            Some(byte) => *byte ^= 0x10,
            None => bad.push(0x10),
        }
        fs::write(&path, &bad)?;
        let outcome = images(paths, "verify", &image)?;
        // Verify names what only another build of Katydid would need; the image is no worse for this build.
        let is_noticed = !outcome.status.success() || describe(&outcome).contains("not as it was written");
        ensure!(is_noticed, "a damaged {name} is not noticed: {}", describe(&outcome));
        fs::write(&path, &good)?;
    }
    let pack = files_below(&image.join("packs"))?.into_iter().next().context("there is no pack")?;
    let good = fs::read(&pack)?;
    fs::remove_file(&pack)?;
    let outcome = stage.restore("damaged", "image", &[])?.finish(CHECKPOINT_TIMEOUT)?;
    ensure!(!outcome.status.success(), "it restored without its pack: {}", describe(&outcome));
    stage.is_clean()?;
    fs::write(&pack, &good)?;
    let outcome = stage.restore("damaged", "image", &[])?.finish(CHECKPOINT_TIMEOUT)?;
    continues(&expected_of_loop(paths)?, (written, written), &outcome)?;
    stage.is_clean()
}

pub(crate) fn files_below(folder: &Path) -> Result<Vec<std::path::PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            files.extend(files_below(&path)?);
        } else if !path.is_symlink() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn a_stuck_kernel(paths: &Paths, way: &str) -> Result<()> {
    let stage = Stage::new(paths, way)?;
    let mut job = stage.start("stuck", ("fixture", Variant::Static), &["stuck"], &[])?;
    job.wait_for("ready")?;
    let outcome = job.checkpoint(&stage.image("image"), &["--quiesce-timeout", "1s"])?;
    let errors = outcome.errors();
    ensure!(!outcome.status.success() && errors.contains("stream"), "no stream is named: {}", describe(&outcome));
    ensure!(job.view().is_some(), "the job is gone");
    job.kill_everything(&stage.server)?;
    drop(job);
    stage.server.workers_of(0)?;
    Ok(())
}

/// The kernel runs when the checkpoint is requested, and ends while the checkpoint waits for it.
fn during_the_first_kernel(paths: &Paths, way: &str) -> Result<()> {
    let stage = Stage::new(paths, way)?;
    let (launch, end) = (stage.image("launch"), stage.image("end"));
    let arguments = ["waits", &launch.to_string_lossy(), &end.to_string_lossy()];
    let mut job = stage.start("first", ("fixture", Variant::Static), &arguments, &[])?;
    job.wait_for("ready")?;
    stage.checkpoint(&job, "image", &[])?;
    was_stopped(job)?;
    fs::write(&launch, "")?;
    let mut job = stage.restore("first", "image", &[])?;
    job.wait_for("runs")?;
    let asking = Running::start(&mut job.checkpoint_command(&stage.image("image"), &[]), Stdio::null())?;
    let is_paused = |view: serde_json::Value| view["checkpoint"]["stage"] == "pause";
    until("the checkpoint waits for the kernel", || job.view().is_some_and(is_paused))?;
    fs::write(&end, "")?;
    let outcome = asking.finish(CHECKPOINT_TIMEOUT)?;
    ensure!(outcome.status.success(), "{}", describe(&outcome));
    was_stopped(job)?;
    let outcome = stage.restore("first", "image", &[])?.finish(CHECKPOINT_TIMEOUT)?;
    ensure!(outcome.status.success() && outcome.text() == "ended 1\n", "{}", describe(&outcome));
    stage.is_clean()
}

/// The restored program's own threads run before its session is resumed, and may end without using it.
fn a_quick_end(paths: &Paths, way: &str) -> Result<()> {
    let stage = Stage::new(paths, way)?;
    let file = stage.image("file");
    let program = ("fixture", Variant::Static);
    let mut job = stage.start("quick", program, &["quits", &file.to_string_lossy()], &[])?;
    job.wait_for("ready")?;
    stage.checkpoint(&job, "image", &[])?;
    was_stopped(job)?;
    fs::write(&file, "")?;
    let outcome = stage.restore("quick", "image", &[])?.finish(CHECKPOINT_TIMEOUT)?;
    ensure!(outcome.status.success() && outcome.text() == "quits\n", "{}", describe(&outcome));
    stage.is_clean()
}

fn device_only(paths: &Paths, way: &str) -> Result<()> {
    let stage = Stage::new(paths, way)?;
    let mut job = stage.start("device", LOOP, &[], &[30, 80])?;
    while job.holds_itself()? {
        stage.checkpoint(&job, "image", &["--device-only"])?;
    }
    went_on(paths, job)?;
    let outcome = images(paths, "verify", &stage.image("image"))?;
    ensure!(outcome.status.success(), "{}", describe(&outcome));
    let outcome = stage.restore("device", "image", &[])?.finish(CHECKPOINT_TIMEOUT)?;
    ensure!(!outcome.status.success() && outcome.errors().contains("device-only"), "{}", describe(&outcome));
    stage.is_clean()
}

/// A supervisor without any capability, as unprivileged users have it. CRIU cannot work, and the refusal says what works instead.
fn without_rights(paths: &Paths, way: &str) -> Result<()> {
    const UNPRIVILEGED: [&str; 3] = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"];
    let stage = Stage::new(paths, way)?;
    let plan = Plan { points: &[30, 60, 80], through: &UNPRIVILEGED, ..Plan::default() };
    let mut job = stage.start_by("unprivileged", LOOP, &plan)?;
    for options in [&["--device-only"][..], &[], &["--device-only"]] {
        ensure!(job.holds_itself()?, "the job ended before its point");
        let outcome = job.checkpoint(&stage.image("image"), options)?;
        let (succeeded, errors) = (outcome.status.success(), outcome.errors());
        ensure!(succeeded != options.is_empty(), "with {options:?}: {}", describe(&outcome));
        ensure!(succeeded || errors.contains("--device-only needs no CRIU"), "{}", describe(&outcome));
    }
    went_on(paths, job)?;
    stage.is_clean()
}

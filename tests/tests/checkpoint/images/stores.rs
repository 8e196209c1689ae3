//! Destinations of checkpoints: object stores, full disks, images that keep few checkpoints, and periodic checkpoints.

#[expect(clippy::unwrap_used, clippy::panic, reason = "a server of a test's own stops at the first surprise")]
#[path = "../../../../crates/image/tests/common/s3.rs"]
pub(crate) mod s3;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use katydid_tests::commands::katydid;
use katydid_tests::gate::SilentAddress;
use katydid_tests::job::Plan;
use katydid_tests::paths::Paths;
use katydid_tests::program::{self, Outcome};
use katydid_tests::watch::{WAIT_TIMEOUT, descriptors, resident_kib, threads, tree, until};
use serde_json::json;

use crate::programs::number;
use crate::scenarios::{LOOP, Scenario, SmallFileSystem, expected_of_loop, files_below, images, was_stopped, went_on};
use crate::stage::{CHECKPOINT_TIMEOUT, Checkpoint, Stage, WAY_NAMES, continues, describe};

/// Scenarios in which workers write through the supervisor, so the way matters.
const ON_EVERY_WAY: [(&str, Scenario); 1] = [("an_object_store_holds_an_image", object_store)];

const ON_ONE_WAY: [(&str, Scenario); 10] = [
    ("a_job_that_is_checkpointed_again_and_again_grows_nowhere", again_and_again),
    ("a_disk_that_fills_up_leaves_the_last_checkpoint_whole", filling_disk),
    ("a_run_takes_checkpoints_as_time_passes_and_keeps_few", every_so_often),
    ("a_run_takes_checkpoints_into_an_object_store_as_time_passes", every_so_often_far_away),
    ("a_restored_job_takes_checkpoints_as_time_passes", every_so_often_again),
    ("checkpoints_are_taken_from_outside_as_time_passes", every_so_often_from_outside),
    ("a_refused_checkpoint_from_outside_is_followed_by_the_next", refused_from_outside),
    ("a_checkpoint_is_there_though_older_ones_cannot_be_removed", damaged_before),
    ("a_lock_that_was_left_in_an_object_store_is_taken_over", left_lock),
    ("a_store_that_goes_away_is_an_error_and_the_program_goes_on", lost_store),
];

/// The trials' names and ways.
pub(crate) fn trials() -> impl Iterator<Item = (&'static str, Scenario, &'static str)> {
    let every = ON_EVERY_WAY.iter().flat_map(|&(name, scenario)| WAY_NAMES.map(|way| (name, scenario, way)));
    every.chain(ON_ONE_WAY.iter().map(|&(name, scenario)| (name, scenario, "shm")))
}

/// Returns the environment of AWS's tools for a server at `endpoint`.
pub(crate) fn credentials(endpoint: &str) -> [(&str, &str); 5] {
    [
        ("AWS_ENDPOINT", endpoint),
        ("AWS_ALLOW_HTTP", "true"),
        ("AWS_REGION", "here"),
        ("AWS_ACCESS_KEY_ID", "me"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
    ]
}

/// Runs a command about images with the store's credentials.
fn about(paths: &Paths, endpoint: &str, texts: &[&str]) -> Result<Outcome> {
    let outcome = program::run(katydid(paths, texts).envs(credentials(endpoint)), WAIT_TIMEOUT)?;
    ensure!(outcome.status.success(), "{texts:?}: {}", describe(&outcome));
    Ok(outcome)
}

/// The most descriptors, and threads of one kind, by which a process may grow for good: a pool of threads grows by one when all
/// are busy at once. A leak would grow by one with each of the many more checkpoints.
const FEW_FILES: usize = 4;

/// Resources of each process: descriptors, threads and KiB of memory; and the files of an image.
#[derive(Debug)]
struct HeldResources {
    open: Vec<(usize, usize)>,
    memory: Vec<u64>,
    files: usize,
}

impl HeldResources {
    fn by(processes: &[u32], image: &Path) -> Result<Self> {
        Ok(Self {
            open: processes.iter().map(|pid| (descriptors(*pid), threads(*pid))).collect(),
            memory: processes.iter().map(|pid| resident_kib(*pid)).collect(),
            files: files_below(image)?.len(),
        })
    }

    /// Whether resources have not grown since `earlier`, except for what pools and an allocator may keep and the files
    /// of one more checkpoint.
    fn is_no_more_than(&self, earlier: &Self) -> bool {
        const SLACK_BYTES: u64 = 4 << 10;
        let opens = self
            .open
            .iter()
            .zip(&earlier.open)
            .any(|(now, then)| now.0 > then.0 + FEW_FILES || now.1 > then.1 + FEW_FILES);
        let grows = self.memory.iter().zip(&earlier.memory).any(|(now, then)| *now > then + SLACK_BYTES);
        !opens && !grows && self.files <= earlier.files + 4
    }
}

/// Takes many checkpoints of one run into one image that keeps three. The supervisor, the program, its worker and the image
/// hold no more after them than after a few. `KATYDID_ENDURANCE_CHECKPOINTS` takes more.
fn again_and_again(paths: &Paths, way: &str) -> Result<()> {
    let count = number("KATYDID_ENDURANCE_CHECKPOINTS", 24)?;
    ensure!(
        count - count / 3 > 2 * FEW_FILES as u64,
        "{count} checkpoints are too few to show what each of them leaves"
    );
    let stage = Stage::new(paths, way)?;
    let mut job = stage.start("often", LOOP, &["1000000", "5"], &[])?;
    job.wait_for("step 3 ")?;
    let worker = stage.server.workers_of(1)?[0];
    let processes: Vec<u32> = tree(job.pid()).into_iter().chain([worker, stage.server.pid()]).collect();
    let resources = || HeldResources::by(&processes, &stage.image("image"));
    let take = |count| {
        (0..count).try_for_each(|_| stage.checkpoint(&job, "image", &["--leave-running", "--keep", "3"]).map(drop))
    };
    take(count / 3)?;
    let resources_before = resources()?;
    take(count - count / 3)?;
    let mut after = resources()?;
    // Threads of the checkpoint, and those of streams that were idle for a while, may be about to end.
    let is_flat = until("no process holds more", || {
        resources().is_ok_and(|now| {
            after = now;
            after.is_no_more_than(&resources_before)
        })
    });
    is_flat.with_context(|| format!("before: {resources_before:?}; after: {after:?}"))?;
    job.kill_everything(&stage.server)?;
    drop(job);
    stage.server.workers_of(0)?;
    Ok(())
}

/// Checkpoints of one run go into a bucket, and each is restored from there. Then the bucket is listed, verified and cleaned up.
fn object_store(paths: &Paths, way: &str) -> Result<()> {
    const IMAGE: &str = "s3://bucket/jobs/far";
    let endpoint = s3::serve();
    let (stage, variables) = (Stage::new(paths, way)?, credentials(&endpoint));
    let plan = Plan { arguments: &["60", "0", "24"], points: &[60, 90], variables: &variables, ..Plan::default() };
    let mut job = stage.start_by("far", LOOP, &plan)?;
    let mut checkpoints = Vec::new();
    for options in [&["--leave-running"][..], &[]] {
        ensure!(job.holds_itself()?, "the job ended before its point");
        let written = job.output_so_far()?.len();
        let outcome = job.checkpoint(Path::new(IMAGE), options)?;
        ensure!(outcome.status.success(), "{}", describe(&outcome));
        checkpoints.push((Checkpoint::read(&outcome)?, written));
    }
    was_stopped(job)?;
    ensure!(checkpoints[0].0.added >= 24 << 20 && checkpoints[1].0.added <= 8 << 20, "{checkpoints:?}");
    let expected = expected_of_heavy(&stage)?;
    for (checkpoint, written) in checkpoints {
        let number = checkpoint.number.to_string();
        let plan = Plan { arguments: &["--at", &number], variables: &variables, ..Plan::default() };
        let outcome = stage.restore_from("far", Path::new(IMAGE), &plan)?.finish(WAIT_TIMEOUT)?;
        continues(&expected, (written, written), &outcome).with_context(|| format!("checkpoint {number}"))?;
    }
    about(paths, &endpoint, &["images", "verify", IMAGE])?;
    let shown = about(paths, &endpoint, &["inspect", IMAGE, "--json"])?;
    ensure!(shown.text().contains("\"far\""), "{}", describe(&shown));
    about(paths, &endpoint, &["images", "gc", "--keep", "1", IMAGE])?;
    let shown = about(paths, &endpoint, &["inspect", IMAGE])?;
    ensure!(shown.text().contains("checkpoint 2, and 0 more"), "{}", describe(&shown));
    stage.is_clean()
}

/// A supervisor killed while it wrote has left its lock. A process that comes soon after gets an error that names the holder.
/// Much later, by the clock of the store, a process takes the lock over.
fn left_lock(paths: &Paths, way: &str) -> Result<()> {
    const IMAGE: &str = "s3://bucket/jobs/left";
    const LONG: u64 = 3600;
    let endpoint = s3::serve();
    let (stage, variables) = (Stage::new(paths, way)?, credentials(&endpoint));
    let plan = Plan { points: &[60, 70], variables: &variables, ..Plan::default() };
    let mut killed = stage.start_by("killed", LOOP, &Plan { fault: Some("write:kill"), ..plan })?;
    ensure!(killed.holds_itself()?, "the job ended before its point");
    killed.checkpoint(Path::new(IMAGE), &[])?;
    let lock_text = format!("process {} on ", killed.pid());
    killed.finish(WAIT_TIMEOUT)?;
    let mut job = stage.start_by("next", LOOP, &plan)?;
    ensure!(job.holds_itself()?, "the job ended before its point");
    let refused = job.checkpoint(Path::new(IMAGE), &[])?;
    ensure!(!refused.status.success() && refused.errors().contains(&lock_text), "{}", describe(&refused));
    let mut verify = katydid(paths, &["images", "verify", IMAGE]);
    let verified = program::run(verify.envs(credentials(&endpoint)), WAIT_TIMEOUT)?;
    // Nothing can be restored yet, and the error names the lock.
    ensure!(!verified.status.success() && verified.text().contains(&lock_text), "{}", describe(&verified));
    ensure!(job.holds_itself()?, "the job ended before its second point");
    s3::pass(LONG);
    let outcome = job.checkpoint(Path::new(IMAGE), &[])?;
    ensure!(outcome.status.success(), "{}", describe(&outcome));
    was_stopped(job)?;
    let verified = about(paths, &endpoint, &["images", "verify", IMAGE])?;
    ensure!(
        verified.text().contains("checkpoint 1: whole") && !verified.text().contains("the lock"),
        "{}",
        describe(&verified)
    );
    stage.is_clean()
}

/// Returns what the loop with ballast prints in an undisturbed run.
fn expected_of_heavy(stage: &Stage) -> Result<String> {
    let outcome = stage.start("plain", LOOP, &["60", "0", "24"], &[])?.finish(WAIT_TIMEOUT)?;
    ensure!(outcome.status.success(), "{}", describe(&outcome));
    Ok(outcome.text())
}

/// The server of the store ends between two checkpoints.
fn lost_store(paths: &Paths, way: &str) -> Result<()> {
    let (stage, silence) = (Stage::new(paths, way)?, SilentAddress::new()?);
    let endpoint = format!("http://{}", silence.address());
    let variables = credentials(&endpoint);
    let plan = Plan { points: &[60], variables: &variables, ..Plan::default() };
    let mut job = stage.start_by("far", LOOP, &plan)?;
    ensure!(job.holds_itself()?, "the job ended before its point");
    let outcome = job.checkpoint(Path::new("s3://bucket/jobs/none"), &[])?;
    ensure!(!outcome.status.success() && outcome.errors().contains("s3://bucket/jobs/none"), "{}", describe(&outcome));
    went_on(paths, job)?;
    stage.is_clean()
}

/// After a good checkpoint, the next one gets more room each time until it fits. Whatever was written when the disk is full,
/// the good checkpoint stays, and the program goes on to its next point.
fn filling_disk(paths: &Paths, way: &str) -> Result<()> {
    const ROOM_BYTES: [u64; 7] = [0, 16 << 10, 256 << 10, 1 << 20, 3 << 20, 6 << 20, 24 << 20];
    let stage = Stage::new(paths, way)?;
    let folder = stage.image("small");
    let small = SmallFileSystem::mount(&folder)?;
    let (image, filler) = (folder.join("image"), folder.join("filler"));
    let points: Vec<u64> = (0..=ROOM_BYTES.len() as u64).map(|step| 60 + 3 * step).collect();
    let mut job = stage.start("full", LOOP, &[], &points)?;
    ensure!(job.holds_itself()?, "the job ended before its first point");
    let written = job.output_so_far()?.len();
    ensure!(job.checkpoint(&image, &["--leave-running"])?.status.success(), "the first checkpoint failed");
    let mut failures = 0;
    for room in ROOM_BYTES {
        ensure!(job.holds_itself()?, "the job ended before its point");
        fill(&filler, &folder, room)?;
        let outcome = job.checkpoint(&image, &["--leave-running", "--full"])?;
        fs::remove_file(&filler)?;
        if !outcome.status.success() {
            failures += 1;
            ensure!(is_about_room(&outcome.errors()), "with {room} bytes of room: {}", describe(&outcome));
        }
        let verified = images(paths, "verify", &image)?;
        ensure!(verified.status.success(), "with {room} bytes of room: {}", describe(&verified));
    }
    went_on(paths, job)?;
    ensure!(failures >= 2, "only {failures} checkpoints found no room");
    let outcome = stage.restore("full", "small/image", &["--at", "1"])?.finish(WAIT_TIMEOUT)?;
    continues(&expected_of_loop(paths)?, (written, written), &outcome)?;
    drop(small);
    stage.is_clean()
}

/// Whether errors report a full disk, in Katydid's words or CRIU's.
fn is_about_room(errors: &str) -> bool {
    ["no free space for the image", "No space left"].iter().any(|words| errors.contains(words))
}

/// Leaves `free_bytes` bytes free in the file system of `folder`.
fn fill(filler: &Path, folder: &Path, free_bytes: u64) -> Result<()> {
    let stat = rustix::fs::statvfs(folder)?;
    let left = (stat.f_bavail * stat.f_frsize).saturating_sub(free_bytes);
    Ok(fs::write(filler, vec![0; usize::try_from(left)?])?)
}

/// An older checkpoint is damaged, so no code can tell which files are unneeded.
fn damaged_before(paths: &Paths, way: &str) -> Result<()> {
    let (stage, expected) = (Stage::new(paths, way)?, expected_of_loop(paths)?);
    let mut job = stage.start("kept", LOOP, &[], &[60, 70])?;
    ensure!(job.holds_itself()?, "the job ended before its point");
    stage.checkpoint(&job, "image", &["--leave-running"])?;
    ensure!(job.holds_itself()?, "the job ended before its second point");
    fs::write(stage.image("image/checkpoints/000001/manifest.json"), "{}")?;
    let written = job.output_so_far()?.len();
    let outcome = job.checkpoint(&stage.image("image"), &["--keep", "2"])?;
    let is_told = outcome.status.success() && describe(&outcome).contains("older checkpoints were not removed");
    ensure!(is_told, "{}", describe(&outcome));
    was_stopped(job)?;
    let outcome = stage.restore("kept", "image", &[])?.finish(CHECKPOINT_TIMEOUT)?;
    continues(&expected, (written, written), &outcome)?;
    stage.is_clean()
}

/// `katydid run --every` takes checkpoints by itself until the program ends. It must have taken three or more; two are left,
/// and both are good.
fn every_so_often(paths: &Paths, way: &str) -> Result<()> {
    let stage = Stage::new(paths, way)?;
    let image = stage.image("image").display().to_string();
    let options = ["--image", &image, "--every", "50ms", "--keep", "2"];
    let plan = Plan { arguments: &["100000", "5"], options: &options, ..Plan::default() };
    let job = stage.start_by("often", LOOP, &plan)?;
    until("the fourth checkpoint was taken", || has_fourth(&stage.image("image")))?;
    job.kill_everything(&stage.server)?;
    drop(job);
    keeps_two(paths, &stage)
}

/// Periodic checkpoints go into a bucket, which an address names; no part of them is on this machine.
fn every_so_often_far_away(paths: &Paths, way: &str) -> Result<()> {
    const IMAGE: &str = "s3://bucket/jobs/timed";
    let endpoint = s3::serve();
    let (stage, variables) = (Stage::new(paths, way)?, credentials(&endpoint));
    let options = ["--image", IMAGE, "--every", "50ms", "--keep", "2"];
    let plan = Plan { arguments: &["100000", "5"], options: &options, variables: &variables, ..Plan::default() };
    let mut job = stage.start_by("often", LOOP, &plan)?;
    job.wait_for("step 1 ")?;
    let mut last = json!(null);
    until("the second checkpoint was taken", || {
        last = job.view().map_or(json!(null), |view| view["last"].clone());
        last["checkpoint"].as_u64() >= Some(2)
    })?;
    ensure!(last["image"] == IMAGE, "the image: {last}");
    job.kill_everything(&stage.server)?;
    drop(job);
    about(paths, &endpoint, &["images", "verify", IMAGE])?;
    Ok(stage.server.workers_of(0).map(drop)?)
}

/// `katydid restore --every` writes into the image that it restores from.
fn every_so_often_again(paths: &Paths, way: &str) -> Result<()> {
    let stage = Stage::new(paths, way)?;
    let mut job = stage.start("often", LOOP, &["100000", "5"], &[60])?;
    ensure!(job.holds_itself()?, "the job ended before its point");
    stage.checkpoint(&job, "image", &[])?;
    was_stopped(job)?;
    let job = stage.restore("often", "image", &["--every", "50ms", "--keep", "2"])?;
    until("the fourth checkpoint was taken", || has_fourth(&stage.image("image")))?;
    job.kill_everything(&stage.server)?;
    drop(job);
    keeps_two(paths, &stage)
}

/// Another user's file is in the way at first, and each attempt reports it.
fn refused_from_outside(paths: &Paths, way: &str) -> Result<()> {
    let stage = Stage::new(paths, way)?;
    let image = stage.image("image");
    fs::create_dir(&image)?;
    fs::write(image.join("foreign"), "")?;
    let mut job = stage.start("often", LOOP, &["100000", "5"], &[])?;
    job.wait_for("step 1 ")?;
    let mut command = job.checkpoint_command(&image, &["--every", "50ms", "--keep", "2"]);
    let asking = program::Running::start(&mut command, std::process::Stdio::null())?;
    let refusals = || asking.errors_so_far().map_or(0, |text| text.matches("no checkpoint: ").count());
    until("two checkpoints were refused", || refusals() >= 2)?;
    fs::remove_file(image.join("foreign"))?;
    until("the fourth checkpoint was taken", || has_fourth(&image))?;
    job.kill_everything(&stage.server)?;
    drop(job);
    asking.finish(WAIT_TIMEOUT)?;
    keeps_two(paths, &stage)
}

/// `katydid checkpoint --every` ends with the job.
fn every_so_often_from_outside(paths: &Paths, way: &str) -> Result<()> {
    let stage = Stage::new(paths, way)?;
    let mut job = stage.start("often", LOOP, &["100000", "5"], &[])?;
    job.wait_for("step 1 ")?;
    let mut command = job.checkpoint_command(&stage.image("image"), &["--every", "50ms", "--keep", "2"]);
    let asking = program::Running::start(&mut command, std::process::Stdio::null())?;
    until("the fourth checkpoint was taken", || has_fourth(&stage.image("image")))?;
    job.kill_everything(&stage.server)?;
    drop(job);
    // The job may have ended between two checkpoints, or in the middle of one.
    let outcome = asking.finish(WAIT_TIMEOUT)?;
    let checkpoints: serde_json::Value = serde_json::from_slice(&outcome.stdout).with_context(|| describe(&outcome))?;
    let whole = checkpoints.as_array().map_or(0, |all| all.iter().filter(|one| one["checkpoint"].is_u64()).count());
    ensure!(whole >= 3, "{}", describe(&outcome));
    keeps_two(paths, &stage)
}

/// Whether an image has a fourth checkpoint or a later one: the fourth itself is soon removed.
fn has_fourth(image: &Path) -> bool {
    let mut checkpoints = fs::read_dir(image.join("checkpoints")).into_iter().flatten().flatten();
    let is_late = |name: &str| name.parse::<u64>().is_ok_and(|number| number >= 4);
    checkpoints
        .any(|entry| entry.file_name().to_str().is_some_and(is_late) && entry.path().join("manifest.json").exists())
}

/// Checks that the two newest checkpoints exist, and that each can be restored. A supervisor killed early may
/// have left the third.
fn keeps_two(paths: &Paths, stage: &Stage) -> Result<()> {
    let image = stage.image("image");
    let cleared = program::run(katydid(paths, &["images", "gc", "--keep", "2"]).arg(&image), WAIT_TIMEOUT)?;
    ensure!(cleared.status.success(), "{}", describe(&cleared));
    let verified = images(paths, "verify", &image)?;
    ensure!(verified.status.success(), "{}", describe(&verified));
    let whole: Vec<String> = verified
        .text()
        .lines()
        .filter_map(|line| Some(line.strip_prefix("checkpoint ")?.split_once(": whole")?.0.to_owned()))
        .collect();
    ensure!(whole.len() == 2 && !whole.contains(&"1".to_owned()), "{}", describe(&verified));
    for number in whole {
        let mut job = stage.restore("often", "image", &["--at", &number])?;
        job.wait_for("step ")?;
        job.kill_everything(&stage.server)?;
    }
    Ok(stage.server.workers_of(0).map(drop)?)
}

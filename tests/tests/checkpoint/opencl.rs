//! OpenCL programs: checkpoints at counted calls, as `programs.rs` takes those of CUDA programs, and ranks of MPI.
//!
//! Sessions of OpenCL and CUDA move to other servers and devices while their programs run. The driver is PoCL; in a pack
//! it is the machine's.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use katydid_tests::job::{Job, Plan};
use katydid_tests::opencl::{
    Intel, OF_INTEL, WITHOUT_CACHE, has_driver, intel, is_pocl, libraries, memory_driver, program, programs, seeds,
};
use katydid_tests::paths::{Paths, driver_under_test};
use katydid_tests::program::{Outcome, run};
use katydid_tests::server::Server;
use katydid_tests::trial;
use katydid_tests::watch::{WAIT_TIMEOUT, ask_to_end, tree, until};
use katydid_tests::way::Way;
use libtest_mimic::Trial;
use serde_json::{Value, json};

use crate::jobs::{exchange, lines, post};
use crate::programs::{run_opencl, run_random, show};
use crate::refused;
use crate::scenarios::{LOOP, Scenario, expected_of_loop, was_stopped};
use crate::signals::IGNORE;
use crate::stage::{CHECKPOINT_TIMEOUT, Stage, WAY_NAMES, continues, describe, expected_of, opencl_server, way_to};

/// The program of the scenarios.
const KEPT_OBJECTS_PROGRAM: &str = "kept_objects";
/// The program with images.
const IMAGES: &str = "kept_images";
/// Two kinds of PoCL's CPU devices.
const TWO_DEVICES: (&str, &str) = ("POCL_DEVICES", "pthread basic");

/// Seeds of random calls that every run tries, each on one way; among them those that have found faults.
const RANDOM_CALLS: [(&str, u64); 6] =
    [("shm", 1011), ("shm", 1006), ("unix", 1002), ("unix", 1019), ("tcp", 1025), (PACKED, 1003)];
/// The way over TCP that compresses all payloads.
const PACKED: &str = "packed";
const PACKS: [(&str, &str); 1] = [("KATYDID_PACKING", "always")];
/// The ways on which requested seeds run.
const WAYS_AND_PACKED: [&str; 4] = [WAY_NAMES[0], WAY_NAMES[1], WAY_NAMES[2], PACKED];

/// Settings that change what a worker does, and programs for them.
///
/// `KATYDID_OPENCL_COPIES` moves the copies of contents to the device or to host memory while a program is paused; by default a
/// child keeps those of PoCL. `KATYDID_OPENCL_MAPS=driver` maps as on a device other than a processor;
/// `KATYDID_OPENCL_MAPS=copy` as after a restore. `KATYDID_OPENCL_UNSHARE=off` leaves host memory in the dump of the program.
/// `KATYDID_OPENCL_STAGING=pinned` makes the staging area known to the driver.
const OTHERWISE: [(&str, &str, &str); 8] = [
    ("aside_in_device", "KATYDID_OPENCL_COPIES=device", "kept_objects"),
    ("aside_in_host", "KATYDID_OPENCL_COPIES=host", "kept_objects"),
    ("aside_in_host", "KATYDID_OPENCL_COPIES=host", "kept_svm"),
    ("maps_copy", "KATYDID_OPENCL_MAPS=copy", "kept_copies"),
    ("maps_copy", "KATYDID_OPENCL_MAPS=copy", "kept_maps"),
    ("maps_of_the_driver", "KATYDID_OPENCL_MAPS=driver", "kept_copies"),
    ("nothing_is_apart", "KATYDID_OPENCL_UNSHARE=off", "kept_apart"),
    ("staging_is_known", "KATYDID_OPENCL_STAGING=pinned", "kept_copies"),
];

/// What a scenario needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ScenarioNeeds {
    Cuda,
    Opencl,
    /// PoCL as the driver, with its variables.
    Pocl,
    /// A driver, and Open MPI.
    Ranks,
}

/// Scenarios, their ways, and what they need.
const SCENARIOS: [(&str, Scenario, &[&str], ScenarioNeeds); 20] = [
    ("a_session_of_cuda_moves_to_another_server", cuda_moves, &WAY_NAMES, ScenarioNeeds::Cuda),
    ("a_session_of_opencl_moves_to_another_server", opencl_moves, &WAY_NAMES, ScenarioNeeds::Opencl),
    (
        "buffers_in_memory_of_both_sides_move_to_a_device_that_copies_and_back",
        buffers_move,
        &["shm"],
        ScenarioNeeds::Opencl,
    ),
    (
        "images_in_memory_of_both_sides_move_to_a_device_that_copies_and_back",
        images_move,
        &["shm"],
        ScenarioNeeds::Opencl,
    ),
    ("images_in_memory_of_both_sides_move_to_another_device", images_move_on, &["shm"], ScenarioNeeds::Pocl),
    (
        "fine_grained_memory_moves_with_its_program_and_to_no_device_that_cannot_have_it",
        fine_moves,
        &["shm"],
        ScenarioNeeds::Pocl,
    ),
    ("memory_for_the_host_is_not_in_the_dump", not_in_the_dump, &["shm"], ScenarioNeeds::Pocl),
    (
        "contents_are_read_from_a_device_whose_commands_run_in_the_callers_thread",
        reads_aside,
        &["shm"],
        ScenarioNeeds::Pocl,
    ),
    ("binaries_are_those_of_which_the_sizes_were_told", binaries_move, &WAY_NAMES, ScenarioNeeds::Pocl),
    ("a_session_of_opencl_moves_in_mid_run", moves_in_mid_run, &["shm"], ScenarioNeeds::Opencl),
    ("a_session_of_opencl_moves_to_another_device_and_back", devices, &["shm"], ScenarioNeeds::Pocl),
    ("a_device_that_is_too_small_is_refused_and_the_program_goes_on", too_small, &["shm"], ScenarioNeeds::Pocl),
    ("a_program_that_does_not_build_elsewhere_is_refused_and_goes_on", not_built, &["tcp"], ScenarioNeeds::Pocl),
    ("a_checkpoint_whose_program_would_not_build_again_keeps_the_job", not_built_again, &["shm"], ScenarioNeeds::Pocl),
    ("a_process_of_opencl_that_the_job_does_not_know_is_named", unknown, &["shm"], ScenarioNeeds::Opencl),
    ("signals_that_a_program_of_opencl_ignores_leave_it_its_worker", signalled, &["shm"], ScenarioNeeds::Opencl),
    (
        "a_program_of_opencl_keeps_its_session_whatever_its_process_has_become",
        refused::changed_opencl,
        &WAY_NAMES,
        ScenarioNeeds::Opencl,
    ),
    ("ranks_of_mpi_with_opencl_are_killed_and_restored_whole", ranks, &["shm"], ScenarioNeeds::Ranks),
    ("ranks_of_a_job_that_each_begin_by_katydid_run_are_of_that_job", ranks_within, &["shm"], ScenarioNeeds::Ranks),
    ("ranks_of_opencl_that_each_begin_by_katydid_run_are_one_job", ranks_by_katydid, &["shm"], ScenarioNeeds::Ranks),
];

pub(crate) fn trials(paths: &Paths) -> Vec<Trial> {
    let has_driver = has_driver(paths);
    let mut trials = Vec::new();
    for name in programs(paths).unwrap_or_default().into_iter().filter(|name| !name.starts_with("mpi_")) {
        for way in WAY_NAMES {
            let (paths, name) = (paths.clone(), name.clone());
            let trial = trial::test(format!("{way}::opencl::{name}"), move || run_opencl(&paths, &name, way, &[]));
            trials.push(trial.with_ignored_flag(!has_driver));
        }
    }
    // The tests without checkpoints cover an invalid range.
    let seed_cases =
        seeds().ok().flatten().map(|seeds| seeds.flat_map(|seed| WAYS_AND_PACKED.map(|way| (way, seed))).collect());
    for (way, seed) in seed_cases.unwrap_or_else(|| RANDOM_CALLS.to_vec()) {
        let (paths, title) = (paths.clone(), format!("{way}::random_calls_of_seed_{seed}"));
        let (way, variables) = if way == PACKED { ("tcp", &PACKS[..]) } else { (way, &[][..]) };
        let trial = trial::test(title, move || run_random(&paths, way, variables, seed));
        trials.push(trial.with_ignored_flag(!has_driver));
    }
    for (title, variable, name) in OTHERWISE {
        let paths = paths.clone();
        let trial = trial::test(format!("shm::opencl::{name}::{title}"), move || {
            run_opencl(&paths, name, "shm", variable.split_once('=').as_slice())
        });
        trials.push(trial.with_ignored_flag(!has_driver));
    }
    trials.extend(intel(paths).iter().flat_map(trials_on));
    for (name, scenario, ways, takes) in SCENARIOS {
        let is_there = match takes {
            ScenarioNeeds::Cuda => true,
            ScenarioNeeds::Opencl => has_driver,
            ScenarioNeeds::Pocl => is_pocl(paths),
            ScenarioNeeds::Ranks => has_driver && program(paths, "mpi_ring").exists(),
        };
        for way in ways {
            let paths = paths.clone();
            let trial = trial::test(format!("{way}::{name}"), move || {
                scenario(&paths, way).with_context(|| format!("{way}::{name}")).map_err(show)
            });
            trials.push(trial.with_ignored_flag(!is_there));
        }
    }
    trials
}

/// Returns the tests of programs on Intel's driver.
fn trials_on(intel: &Intel) -> Vec<Trial> {
    let all = OF_INTEL.iter().flat_map(|name| WAY_NAMES.map(|way| (way, *name)));
    let trial = |(way, name): (&'static str, &'static str)| {
        let Intel { library, paths, .. } = intel.clone();
        Trial::test(format!("{way}::opencl::{name}"), move || {
            run_opencl(&paths, name, way, &[("KATYDID_OPENCL_DRIVERS", &library.to_string_lossy())])
        })
    };
    all.map(trial).collect()
}

/// Returns the address that a way uses of a server.
pub(crate) fn address(server: &Server, way: &str) -> Result<String> {
    match way_to(way, server)? {
        Way::Served { address, .. } => Ok(address),
        _ => Ok(server.unix()),
    }
}

fn migrate(job: &Job<'_>, to: &str, options: &[&str]) -> Result<Outcome> {
    Ok(run(&mut job.migrate_command(to, options), WAIT_TIMEOUT)?)
}

/// Migrates a job, which must succeed. Returns how many of its workers had made their sessions' objects before.
fn moves(job: &Job<'_>, to: &str, options: &[&str]) -> Result<u64> {
    let outcome = migrate(job, to, options)?;
    ensure!(outcome.status.success(), "not moved: {}--- the job\n{}", describe(&outcome), job.errors_so_far()?);
    let moved: Value = serde_json::from_str(outcome.text().trim()).context("no report")?;
    ensure!(moved["to"] == to && moved["stopped_us"].as_u64().is_some(), "{moved}");
    moved["rehearsed"].as_u64().context("nothing is said of workers that were there before")
}

/// Checks that the program came to its end with the output of an undisturbed run.
fn ended_well(job: Job<'_>, expected: &str) -> Result<()> {
    let outcome = job.finish(CHECKPOINT_TIMEOUT)?;
    ensure!(outcome.status.success() && outcome.text() == expected, "the program that moved: {}", describe(&outcome));
    Ok(())
}

/// Moves a job to a second server, and back; the first server is not needed meanwhile. Then the job is checkpointed.
/// `rehearsed` are the numbers of sessions that workers had made before, there and here.
fn to_and_fro(
    stage: &Stage,
    other: &Server,
    mut job: Job<'_>,
    expected: &str,
    way: &str,
    rehearsed: [u64; 2],
) -> Result<()> {
    let (home, away) = (address(&stage.server, way)?, address(other, way)?);
    ensure!(job.holds_itself()?, "the job ended before its point");
    let there = moves(&job, &away, &[])?;
    stage.server.workers_of(0)?;
    other.workers_of(1)?;
    ensure!(job.holds_itself()?, "the job ended before its second point");
    let here = moves(&job, &home, &["-o", &stage.image("way").display().to_string()])?;
    other.workers_of(0)?;
    ensure!([there, here] == rehearsed, "made before: {there} and {here}");
    ensure!(job.holds_itself()?, "the job ended before its third point");
    let before = job.output_so_far()?.len();
    stage.checkpoint(&job, "image", &["--leave-running"])?;
    ended_well(job, expected)?;
    let outcome = stage.restore("mover", "image", &[])?.finish(CHECKPOINT_TIMEOUT)?;
    continues(expected, (before, before), &outcome)?;
    stage.is_clean()
}

fn cuda_moves(paths: &Paths, way: &str) -> Result<()> {
    let stage = Stage::new(paths, way)?;
    let other = Server::start(paths, &driver_under_test(), &[])?;
    let job = stage.start("mover", LOOP, &[], &[60, 80, 100])?;
    to_and_fro(&stage, &other, job, &expected_of_loop(paths)?, way, [0, 0])
}

fn opencl_moves(paths: &Paths, way: &str) -> Result<()> {
    let stage = Stage::with_opencl(paths, way, &[])?;
    let (other, expected) = (opencl_server(paths, &[])?, stage.expected_of_opencl(KEPT_OBJECTS_PROGRAM)?);
    let job =
        stage.start_opencl("mover", KEPT_OBJECTS_PROGRAM, &Plan { points: &[70, 110, 150], ..Plan::default() })?;
    to_and_fro(&stage, &other, job, &expected, way, [1, 1])
}

/// The program moves in mid-run: by the time it is paused, its kernels have other arguments.
fn moves_in_mid_run(paths: &Paths, way: &str) -> Result<()> {
    const ARGUMENTS: &[&str] = &["4", "1000", "10"];
    let (stage, other) = (Stage::with_opencl(paths, way, &[])?, opencl_server(paths, &[])?);
    let plan = Plan { arguments: ARGUMENTS, ..Plan::default() };
    let undisturbed = Plan { arguments: &["4", "1000"], ..Plan::default() };
    let expected = stage.start_opencl("plain", "kept_large", &undisturbed)?.finish(CHECKPOINT_TIMEOUT)?.text();
    let mut job = stage.start_opencl("mover", "kept_large", &plan)?;
    job.wait_for("step 3:")?;
    ensure!(moves(&job, &address(&other, way)?, &[])? == 1, "all was made again");
    stage.server.workers_of(0)?;
    let last = job.output_so_far()?.len();
    ensure!(last < expected.len(), "it had ended when it was moved");
    ended_well(job, &expected)
}

/// Contents in the program's memory move to a device with memory of its own, as between processors and other devices. They stay
/// there when the session comes back.
fn buffers_move(paths: &Paths, way: &str) -> Result<()> {
    const COPIES: &str = "kept_copies";
    let stage = Stage::with_opencl(paths, way, &[("KATYDID_OPENCL_UNSHARE", "off")])?;
    let (other, expected) =
        (opencl_server(paths, &[("KATYDID_OPENCL_MAPS", "copy")])?, stage.expected_of_opencl(COPIES)?);
    let job = stage.start_opencl("mover", COPIES, &Plan { points: &[50, 90, 130], ..Plan::default() })?;
    // On processors, the contents tell whether a buffer lies in the program's memory, and an outline has no contents.
    to_and_fro(&stage, &other, job, &expected, way, [1, u64::from(!is_pocl(paths))])
}

/// Images move to another device. The program has one of them mapped, and writes to it after the move.
fn images_move(paths: &Paths, way: &str) -> Result<()> {
    let stage = Stage::with_opencl(paths, way, &[])?;
    let (other, expected) =
        (opencl_server(paths, &[("KATYDID_OPENCL_MAPS", "copy")])?, stage.expected_of_opencl(IMAGES)?);
    let job = stage.start_opencl("mover", IMAGES, &Plan { points: &[60, 130, 200], ..Plan::default() })?;
    to_and_fro(&stage, &other, job, &expected, way, [1, u64::from(!is_pocl(paths))])
}

/// Images also move to a device that takes them over in place, by a migration and by a restore.
fn images_move_on(paths: &Paths, way: &str) -> Result<()> {
    let stage = Stage::with_opencl(paths, way, &[TWO_DEVICES])?;
    let (expected, home) = (stage.expected_of_opencl(IMAGES)?, address(&stage.server, way)?);
    let mut job = stage.start_opencl("mover", IMAGES, &Plan { points: &[60, 130], ..Plan::default() })?;
    ensure!(job.holds_itself()?, "the job ended before its point");
    moves(&job, &home, &["--device", "basic"])?;
    ensure!(job.holds_itself()?, "the job ended before its second point");
    let before = job.output_so_far()?.len();
    stage.checkpoint(&job, "image", &[])?;
    was_stopped(job)?;
    let outcome = stage.restore("mover", "image", &["--device", "pthread"])?.finish(CHECKPOINT_TIMEOUT)?;
    continues(&expected, (before, before), &outcome)?;
    stage.is_clean()
}

/// The program asks for the sizes of binaries here, and for the binaries where the compiler makes larger ones, and
/// the other way round.
fn binaries_move(paths: &Paths, way: &str) -> Result<()> {
    const BINARIES: &str = "kept_binaries";
    let stage = Stage::with_opencl(paths, way, &[])?;
    let other = opencl_server(paths, &[("POCL_EXTRA_BUILD_FLAGS", "-DLARGER")])?;
    let expected = stage.expected_of_opencl(BINARIES)?;
    let job = stage.start_opencl("mover", BINARIES, &Plan { points: &[30, 85, 140], ..Plan::default() })?;
    to_and_fro(&stage, &other, job, &expected, way, [1, 1])
}

/// In each worker, the program's own memory is at the address that kernels know. On a device with memory of its own it cannot be.
fn fine_moves(paths: &Paths, way: &str) -> Result<()> {
    const FINE: &str = "kept_fine_svm";
    /// At this frame the program has such memory and no kernels built yet.
    const BUILDS: u64 = 8;
    let (stage, other) = (Stage::with_opencl(paths, way, &[])?, opencl_server(paths, &[])?);
    let expected = stage.expected_of_opencl(FINE)?;
    let plan = Plan { arguments: &["fine"], points: &[BUILDS, 150, 250, 350], ..Plan::default() };
    let mut job = stage.start_opencl("mover", FINE, &plan)?;
    ensure!(job.holds_itself()?, "the job ended before its point");
    let driver = memory_driver(paths).display().to_string();
    let elsewhere = opencl_server(paths, &[("KATYDID_OPENCL_DRIVERS", &driver)])?;
    let refused = migrate(&job, &address(&elsewhere, way)?, &["--device", "memory"])?;
    let why =
        "fine-grained shared virtual memory are the program's own memory, which only processors of its machine can use";
    ensure!(!refused.status.success() && refused.errors().contains(why), "{}", describe(&refused));
    elsewhere.workers_of(0)?;
    to_and_fro(&stage, &other, job, &expected, way, [1, 1])
}

/// The session saves the contents of a buffer that the program has not mapped, and a second checkpoint adds only the changes.
/// With this switched off, the program's dump contains them.
fn not_in_the_dump(paths: &Paths, way: &str) -> Result<()> {
    const LARGE: u64 = 16 << 20;
    let arguments: &[&str] = &["16", "10", "0", "host"];
    for (is_apart, further) in [(true, &[][..]), (false, &[("KATYDID_OPENCL_UNSHARE", "off")])] {
        let stage = Stage::with_opencl(paths, way, further)?;
        let undisturbed = stage.start_opencl("plain", "kept_large", &Plan { arguments, ..Plan::default() })?;
        let right = undisturbed.finish(CHECKPOINT_TIMEOUT)?.text();
        let mut job =
            stage.start_opencl("host", "kept_large", &Plan { arguments, points: &[40, 50], ..Plan::default() })?;
        ensure!(job.holds_itself()?, "the job ended before its point");
        let first = stage.checkpoint(&job, "image", &["--leave-running"])?;
        ensure!((first.files < LARGE) == is_apart, "with parts {is_apart}: {first:?}");
        ensure!(job.holds_itself()?, "the job ended before its second point");
        let second = stage.checkpoint(&job, "image", &[])?;
        ensure!((second.files < LARGE) == is_apart && second.added < LARGE / 2, "with parts {is_apart}: {second:?}");
        was_stopped(job)?;
        let outcome = stage.restore("host", "image", &[])?.finish(CHECKPOINT_TIMEOUT)?;
        let is_right = outcome.text().contains("all: ") && right.ends_with(&outcome.text());
        ensure!(outcome.status.success() && is_right, "{}", describe(&outcome));
        stage.is_clean()?;
    }
    Ok(())
}

/// Several threads read what was copied aside, on a device that runs commands in the threads that enqueue them.
fn reads_aside(paths: &Paths, way: &str) -> Result<()> {
    /// Arguments of the program, for memory of many chunks.
    const ARGUMENTS: &[&str] = &["32", "10"];
    let stage = Stage::with_opencl(paths, way, &[("POCL_DEVICES", "basic"), ("KATYDID_OPENCL_COPIES", "device")])?;
    let plan = Plan { arguments: ARGUMENTS, ..Plan::default() };
    let right = stage.start_opencl("plain", "kept_large", &plan)?.finish(CHECKPOINT_TIMEOUT)?.text();
    let mut job = stage.start_opencl("aside", "kept_large", &Plan { points: &[40], ..plan })?;
    ensure!(job.holds_itself()?, "the job ended before its point");
    let before = job.output_so_far()?.len();
    stage.checkpoint(&job, "image", &[])?;
    was_stopped(job)?;
    continues(&right, (before, before), &stage.restore("aside", "image", &[])?.finish(CHECKPOINT_TIMEOUT)?)?;
    stage.is_clean()
}

/// Migrations and a restore choose devices by names and numbers.
fn devices(paths: &Paths, way: &str) -> Result<()> {
    let stage = Stage::with_opencl(paths, way, &[TWO_DEVICES])?;
    let (expected, home) = (expected_of(&stage.paths, KEPT_OBJECTS_PROGRAM)?, address(&stage.server, way)?);
    let mut job =
        stage.start_opencl("mover", KEPT_OBJECTS_PROGRAM, &Plan { points: &[60, 80, 110, 150], ..Plan::default() })?;
    ensure!(job.holds_itself()?, "the job ended before its point");
    let unknown = migrate(&job, &home, &["--device", "nowhere"])?;
    ensure!(
        !unknown.status.success() && unknown.errors().contains("no device \"nowhere\"; this server has"),
        "{}",
        describe(&unknown)
    );
    ensure!(job.holds_itself()?, "the job did not go on after a refusal");
    moves(&job, &home, &["--device", "basic"])?;
    ensure!(job.holds_itself()?, "the job ended before its second point");
    moves(&job, &home, &["--device", "0=0"])?;
    ensure!(job.holds_itself()?, "the job ended before its third point");
    let before = job.output_so_far()?.len();
    stage.checkpoint(&job, "image", &[])?;
    was_stopped(job)?;
    let outcome = stage.restore("mover", "image", &["--device", "basic"])?.finish(CHECKPOINT_TIMEOUT)?;
    continues(&expected, (before, before), &outcome)?;
    stage.is_clean()
}

/// Checks that a migration is refused with these words before anything stops.
fn is_refused(job: &Job<'_>, to: &str, words: &[&str]) -> Result<()> {
    let answer = exchange(&job.control(), &post("/v1/migrations", "1.0", &json!({ "to": to })))?;
    let progress = lines(&answer);
    let stages: Vec<&str> = progress.iter().filter_map(|line| line["stage"].as_str()).collect();
    ensure!(stages == ["prepare", "failed"], "{answer}");
    let why = progress.last().and_then(|line| line["error"].as_str()).unwrap_or_default();
    ensure!(words.iter().all(|word| why.contains(word)), "{answer}");
    Ok(())
}

/// The program launched a kernel in groups of 64, and the other server's device has at most 32.
fn too_small(paths: &Paths, way: &str) -> Result<()> {
    let stage = Stage::with_opencl(paths, way, &[])?;
    let (expected, small) = (
        expected_of(&stage.paths, KEPT_OBJECTS_PROGRAM)?,
        opencl_server(paths, &[("POCL_MAX_WORK_GROUP_SIZE", "32")])?,
    );
    let mut job = stage.start_opencl("mover", KEPT_OBJECTS_PROGRAM, &Plan { points: &[110], ..Plan::default() })?;
    ensure!(job.holds_itself()?, "the job ended before its point");
    is_refused(&job, &address(&small, way)?, &["the kernel turn was launched with groups of 64"])?;
    ended_well(job, &expected)?;
    small.workers_of(0)?;
    stage.is_clean()
}

/// The other server's compiler gets options that break the program. The caller reads its log.
fn not_built(paths: &Paths, way: &str) -> Result<()> {
    let stage = Stage::with_opencl(paths, way, &[])?;
    let (expected, other) = (
        expected_of(&stage.paths, KEPT_OBJECTS_PROGRAM)?,
        opencl_server(paths, &[("POCL_EXTRA_BUILD_FLAGS", "-Dturn=7")])?,
    );
    let mut job = stage.start_opencl("mover", KEPT_OBJECTS_PROGRAM, &Plan { points: &[110], ..Plan::default() })?;
    ensure!(job.holds_itself()?, "the job ended before its point");
    is_refused(&job, &address(&other, way)?, &["a program of the session does not build here", "error: "])?;
    ended_well(job, &expected)?;
    other.workers_of(0)?;
    stage.is_clean()
}

/// A header that the program includes is gone at the checkpoint. Since the checkpoint would end the job, it is refused.
fn not_built_again(paths: &Paths, way: &str) -> Result<()> {
    // The folder of the driver's cache, which workers of a server for tenants can read.
    let cache = paths.opencl().join("cache");
    fs::create_dir_all(&cache)?;
    let of_driver = [("POCL_CACHE_DIR", cache.to_str().context("a folder with an odd name")?), WITHOUT_CACHE];
    let (stage, folder) = (Stage::with_opencl(paths, way, &of_driver)?, tempfile::tempdir_in(&cache)?);
    let (header, path) = (folder.path().join("turn.h"), program(paths, "own_header"));
    fs::write(&header, "#define TURN(x) ((x) * 3 + 1)\n")?;
    let arguments = [folder.path().to_str().context("a folder with an odd name")?];
    let undisturbed =
        stage.start_opencl_at("undisturbed", &path, &Plan { arguments: &arguments, ..Plan::default() })?;
    let undisturbed = undisturbed.finish(CHECKPOINT_TIMEOUT)?;
    ensure!(undisturbed.status.success(), "{}", describe(&undisturbed));
    let plan = Plan { arguments: &arguments, points: &[60], ..Plan::default() };
    let mut job = stage.start_opencl_at("keeper", &path, &plan)?;
    ensure!(job.holds_itself()?, "the job ended before its first point");
    fs::remove_file(&header)?;
    let outcome = job.checkpoint(&stage.image("keeper"), &[])?;
    let is_refused = !outcome.status.success() && outcome.errors().contains("does not build here");
    ensure!(is_refused, "{}", describe(&outcome));
    ended_well(job, &undisturbed.text())?;
    stage.is_clean()
}

/// A program started without the job's variable. It goes on after the refusal.
fn unknown(paths: &Paths, way: &str) -> Result<()> {
    let (stage, path) = (Stage::with_opencl(paths, way, &[])?, program(paths, "kept_large"));
    // More steps than the program reaches.
    let text = format!("env -u KATYDID_JOB '{}' 1 1000000 10", path.display());
    let plan = Plan { arguments: &["-c", &text], ..Plan::default() };
    let mut job = stage.start_opencl_at("unknown", Path::new("/bin/bash"), &plan)?;
    job.wait_for("step 1:")?;
    let answer = job.checkpoint(&stage.image("image"), &[])?;
    let words = ["kept_large (process ", "is not a member of this job", "KATYDID_JOB is not in its environment"];
    refused::is_refused(&answer, &words)?;
    let so_far = job.output_so_far()?.len();
    until("the program goes on", || job.output_so_far().is_ok_and(|text| text.len() > so_far))?;
    job.kill_everything(&stage.server)?;
    drop(job);
    stage.server.workers_of(0)?;
    Ok(())
}

/// The signals go to the worker too, and to the guard and the supervisor.
fn signalled(paths: &Paths, way: &str) -> Result<()> {
    let stage = Stage::with_opencl(paths, way, &[])?;
    let (expected, path) =
        (stage.expected_of_opencl(KEPT_OBJECTS_PROGRAM)?, program(paths, KEPT_OBJECTS_PROGRAM).display().to_string());
    let text = format!("{IGNORE}; exec \"$0\"");
    let plan = Plan { arguments: &["-c", &text, &path], points: &[70], ..Plan::default() };
    let mut job = stage.start_opencl_at("signalled", Path::new("/bin/sh"), &plan)?;
    ensure!(job.holds_itself()?, "the job ended before its point");
    ask_to_end(&[tree(job.pid()), stage.server.workers_of(1)?].concat())?;
    stage.checkpoint(&job, "image", &["--leave-running"])?;
    ended_well(job, &expected)?;
    stage.is_clean()
}

/// `mpirun` and its four ranks, each with a session: killed at once after a checkpoint, and restored.
fn ranks(paths: &Paths, way: &str) -> Result<()> {
    let (stage, launcher) = (Stage::with_opencl(paths, way, &[WITHOUT_CACHE])?, program(paths, "mpi_ring"));
    come_back(&stage, stage.start_opencl_at("ring", &launcher, &AT_WORK)?)
}

/// Ranks under `katydid run mpirun -n 4 katydid run`: killed at once after a checkpoint, and restored.
fn ranks_within(paths: &Paths, way: &str) -> Result<()> {
    let (stage, launcher) = (Stage::with_opencl(paths, way, &[WITHOUT_CACHE])?, program(paths, "mpi_ring"));
    let launcher = Job::ranks_begin(&stage.paths, &stage.way, &[], &launcher, &stage.image(""))?;
    come_back(&stage, stage.start_opencl_at("ring", &launcher, &AT_WORK)?)
}

/// Ranks under `mpirun -n 4 katydid run` alone: killed at once after a checkpoint, and restored.
fn ranks_by_katydid(paths: &Paths, way: &str) -> Result<()> {
    let (stage, launcher) = (Stage::with_opencl(paths, way, &[WITHOUT_CACHE])?, program(paths, "mpi_ring"));
    let libraries = libraries(&stage.paths).display().to_string();
    let plan = Plan { variables: &[("LD_LIBRARY_PATH", libraries.as_str())], ..AT_WORK };
    come_back(&stage, stage.start_ranks("ring", &launcher, &plan)?)
}

/// A plan with a point in the middle of the ranks' work.
const AT_WORK: Plan<'_> =
    Plan { arguments: &[], points: &[60], fault: None, options: &[], variables: &[], through: &[] };

/// Kills a job of ranks right after a checkpoint, and restores it.
fn come_back(stage: &Stage, mut job: Job<'_>) -> Result<()> {
    let expected = expected_of(&stage.paths, "mpi_ring")?;
    ensure!(job.holds_itself()?, "the job ended before its point");
    let before = job.output_so_far()?.len();
    stage.checkpoint(&job, "image", &["--leave-running"])?;
    let after = job.output_so_far()?.len();
    job.kill_everything(&stage.server)?;
    drop(job);
    let outcome = stage.restore("ring", "image", &[])?.finish(CHECKPOINT_TIMEOUT)?;
    continues(&expected, (before, after), &outcome)?;
    stage.is_clean()
}

//! Checkpoint and restore of everything under test: each program at counted calls, and the faults on the way.
//!
//! - `programs.rs`: every program of `tests/apps`, checkpointed at random calls.
//! - `scenarios.rs`: chains, kills at every stage, two restores of one image.
//! - `descriptors.rs`: descriptors of which CRIU saves a part.
//! - `jobs.rs`: processes. `processes.rs`: processes that others lock.
//! - `outside/names.rs`: files. `outside/surroundings.rs`: files and folders around jobs. `outside/streams.rs`: standard streams.
//! - `images/stores.rs`: images. `images/damage.rs`: damaged images. `outside/modes.rs`: modes of written files.
//! - `idle.rs`: memory that a program keeps and does not use.
//! - `held_locks.rs`: held threads, and host functions that go on.
//! - `signals.rs`: signals to all processes of a job.
//! - `images/upgrades.rs`: other builds of Katydid. `outside/rights.rs`: ordinary users. `outside/containers.rs`: containers.
//! - `refused.rs`: refused checkpoints.
//! - `kills/failover.rs`: workers that die. `kills/restores.rs`: kills during a restore. `kills/moves.rs`: faults during a move.
//! - `tls.rs`: servers behind TLS.
//! - `opencl.rs`: OpenCL programs, and sessions that move. `kills/departures.rs`: programs that end while their sessions move.
//! - `images/moved.rs`: images that go to another driver. `images/elsewhere.rs`: images that go to another host.
//! - `variables.rs`: module variables that the next worker's driver places elsewhere.
//! - `images/workers.rs`: sessions that no replay brings back, saved as the processes of their workers.
//! - `frameworks.rs`: programs of PyTorch, CuPy, numba and others.
//!
//! Without a working CRIU, the tests are shown as ignored, with the reason.
//!
//! By default the binary runs tests that take two cores a few minutes. It runs every second scenario and the programs
//! made for checkpoints on the way that the commit chooses, and one checkpoint each of a slice of the other programs.
//! `KATYDID_TEST_ALL=1` takes all ways and slices; `KATYDID_CHECKPOINT_SWEEP=1`, and a pack on a GPU machine, runs everything.
//! `KATYDID_CHECKPOINT_SEED` chooses other calls, and `KATYDID_CHECKPOINT_COUNT` sets their number in a run.
//! `KATYDID_CHECKPOINT_WAYS=all` runs every program on every way.

mod descriptors;
mod frameworks;
mod held_locks;
mod idle;
mod images;
mod ipc_memory;
mod jobs;
mod kills;
mod opencl;
mod outside;
mod processes;
mod programs;
mod refused;
mod scenarios;
mod signals;
mod stage;
mod tls;
mod variables;

use std::collections::BTreeMap;
use std::env;
use std::num::NonZero;
use std::process::ExitCode;
use std::thread;

use katydid_tests::catalog::slice::Slice;
use katydid_tests::catalog::{self, App};
use katydid_tests::paths::{PACK_VARIABLE, Paths, driver_under_test};
use katydid_tests::watch::why_no_checkpoint;
use libtest_mimic::{Arguments, Trial};

use crate::stage::WAY_NAMES;

/// Whether a test run includes this test: faults around a checkpoint, and the programs that each keep one kind of state across
/// checkpoints. Each program runs on one way, and every second fault; the next commit chooses others. The other programs keep
/// little for long, but make calls that these do not: a run has a slice of them, and the sweep has all.
fn is_steady(name: &str, slice: &Slice, ways: &ScenarioWays) -> bool {
    match name.splitn(3, "::").collect::<Vec<&str>>()[..] {
        [way, scenario] => ways.is_chosen(way, scenario, slice),
        [way, images::workers::VARIANT, program] => is_chosen(way, program, slice),
        [_way, images::moved::VARIANT, program] => programs::is_long_lived(program),
        [_way, frameworks::FRAMEWORK_VARIANT, item] => frameworks::is_everywhere(item),
        [way, _variant, program] => programs::is_long_lived(program) && is_chosen(way, program, slice),
        _ => true,
    }
}

/// The ways of each scenario.
struct ScenarioWays(BTreeMap<String, Vec<String>>);

impl ScenarioWays {
    fn of(trials: &[Trial]) -> Self {
        let mut ways: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (way, scenario) in trials.iter().filter_map(|trial| trial.name().split_once("::")) {
            ways.entry(scenario.to_owned()).or_default().push(way.to_owned());
        }
        Self(ways)
    }

    /// Whether the commit chooses this scenario, and this way among its ways.
    fn is_chosen(&self, way: &str, scenario: &str, slice: &Slice) -> bool {
        let Some(ways) = self.0.get(scenario) else { return true };
        let index = ways.iter().position(|other| other == way);
        index.is_none_or(|index| slice.chooses(scenario, index, SCENARIO_SLICES * ways.len()))
    }
}

/// Whether the commit chooses this way for this program.
fn is_chosen(way: &str, program: &str, slice: &Slice) -> bool {
    let index = WAY_NAMES.iter().position(|other| *other == way);
    index.is_none_or(|index| slice.chooses(program, index, WAY_NAMES.len()))
}

/// Number of slices of the scenarios.
const SCENARIO_SLICES: usize = 2;
/// Number of slices of the programs that are not made for checkpoints.
const OTHER_SLICES: u64 = 12;

/// Whether this is a program of `tests/apps` in the slice.
fn is_sliced(name: &str, slice: &Slice, apps: &[App]) -> bool {
    match name.splitn(3, "::").collect::<Vec<&str>>()[..] {
        [_, images::moved::VARIANT | frameworks::FRAMEWORK_VARIANT, _] => false,
        [_, _, program] => slice.has(program, OTHER_SLICES) && apps.iter().any(|app| app.name == program),
        _ => false,
    }
}

/// Prefixes of programs that measure the memory of the device, or take all of it. On a shared device, neither they nor
/// programs beside them print the same each time. With softcuda, each server has devices of its own.
const ALONE_PROGRAMS: [&str; 5] = ["driver_linked", "errors", "cupy.memory", "torch.memory", "jax.memory"];

fn is_alone(name: &str) -> bool {
    let program = name.rsplit("::").next().unwrap_or(name);
    driver_under_test() != "soft" && ALONE_PROGRAMS.iter().any(|start| program.starts_with(start))
}

/// With the value 1, these tests fail, and are not ignored, on a machine that can take no checkpoint. `cargo xtask test`
/// sets it unless it is set.
const WANTED_VARIABLE: &str = "KATYDID_CHECKPOINTS_WANTED";

/// Whether everything runs.
fn is_sweep() -> bool {
    env::var_os(PACK_VARIABLE).is_some() || env::var("KATYDID_CHECKPOINT_SWEEP").is_ok_and(|value| value == "1")
}

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // Tests spend half of their time waiting for processes, disks and each other's memory.
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    arguments.test_threads.get_or_insert(2 * processors);
    let prepared = Paths::of_this_test().map_err(|error| error.to_string()).and_then(|paths| {
        let apps = catalog::apps().map_err(|error| error.to_string())?;
        Ok((paths, apps))
    });
    let (paths, apps) = match prepared {
        Ok(prepared) => prepared,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let mut trials: Vec<Trial> = scenarios::trials(&paths);
    trials.extend(programs::trials(&paths, &apps));
    trials.extend(opencl::trials(&paths));
    trials.extend(frameworks::trials(&paths));
    trials.extend(images::moved::trials(&paths, &apps));
    trials.extend(images::elsewhere::trials(&paths));
    trials.extend(images::workers::trials(&paths, &apps));
    trials.extend(outside::rights::trials(&paths));
    if !is_sweep() {
        let slice = Slice::of_this_test();
        println!(
            "checkpoints: every second scenario and programs that were made for it on one way, and other programs, of {slice}"
        );
        let ways = ScenarioWays::of(&trials);
        trials.retain(|trial| is_steady(trial.name(), &slice, &ways) || is_sliced(trial.name(), &slice, &apps));
    }
    if let Some(why) = why_no_checkpoint(&paths) {
        println!("no checkpoint is tested: {why}");
        trials = trials.into_iter().map(|trial| trial.with_ignored_flag(true)).collect();
        if env::var(WANTED_VARIABLE).is_ok_and(|value| value == "1") {
            let remedy = format!(
                "no checkpoint can be taken here: {why}. Run the tests as root with CAP_SYS_ADMIN (a container takes --privileged), or set {WANTED_VARIABLE}=0 to do without them"
            );
            trials.push(Trial::test("checkpoints_can_be_tested_here", move || Err(remedy.into())));
        }
    }
    let (alone, together): (Vec<_>, Vec<_>) = trials.into_iter().partition(|trial| is_alone(trial.name()));
    let outcome = libtest_mimic::run(&arguments, together);
    if alone.is_empty() {
        return outcome.exit_code();
    }
    let one_by_one = Arguments { test_threads: Some(1), ..arguments };
    let last = libtest_mimic::run(&one_by_one, alone);
    if outcome.has_failed() { outcome.exit_code() } else { last.exit_code() }
}

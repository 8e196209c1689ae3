//! Images that go to another driver: taken with one, restored with another, both ways.
//!
//! Programs that come with PTX are bound to no kind of GPU, nor to a GPU at all. Either they go on there as if nothing had
//! happened, or the restore refuses them before it restores a byte, and names the cause. A refused program goes on where it
//! came from.
//!
//! On a GPU the other driver is softcuda. Where softcuda itself is under test, the other driver is a softcuda with more and
//! larger devices, and nothing is refused.

use std::ffi::OsString;

use katydid_tests::catalog::{App, Kind};
use katydid_tests::job::Plan;
use katydid_tests::paths::{Paths, driver_under_test};
use katydid_tests::trial;
use libtest_mimic::{Failed, Trial};

use crate::programs::{ExpectedOutput, Run, choice, show};
use crate::stage::{Stage, WAY_NAMES, undisturbed_output};

/// The word in place of the variant in the names of these tests.
pub(crate) const VARIANT: &str = "moved";
/// The driver that every machine has.
const SOFT: &str = "soft";
/// A softcuda with other devices.
const OTHER: [(&str, &str); 2] = [("KATYDID_SOFT_DEVICES", "3"), ("KATYDID_SOFT_MEMORY", "48G")];

/// Programs that do not move to another driver, with the reasons.
const BOUND: [(&str, &str); 8] = [
    ("kept_devices", "uses as many devices as it was told of"),
    ("several_devices", "the same"),
    ("device_query", "compares what it was told of the device with what is free there now"),
    ("errors", "takes all memory in eighths of what it was told of"),
    ("nvml_queries", "asks about the GPU itself, again and again"),
    ("kept_green", "divides the multiprocessors that it was told of"),
    (
        "process_checkpoint",
        "names the GPU that it was told of to processes that began behind the move, which were told of another",
    ),
    ("private_tables", "counts the multiprocessors that its kernels run on"),
];

/// As many devices as any machine has GPUs, since a session needs all devices that its program has seen.
const MANY: [(&str, &str); 1] = [("KATYDID_SOFT_DEVICES", "8")];

/// Accepted reasons for which another driver's restore may be refused. Each names a value that the driver chose and
/// that memory may hold.
const REFUSALS: [&str; 5] = [
    // A variable, by its module: NVIDIA's driver chooses its address.
    "so pointers to it would be wrong",
    // The address of a variable, a texture object, a surface object or a conditional handle, by name or number.
    "memory of the program may point there",
    // Functions, by the module whose code calls them by pointers.
    "calls functions by pointers",
    // The result of a linker that compiled text, by its number: machine code of the first driver.
    "does not take the code of a module",
    // Memory that kernels allocated, of which NVIDIA's driver shows nothing.
    "cannot make a heap of device code again",
];

/// A driver and its settings.
type Driver = (String, &'static [(&'static str, &'static str)]);

/// Returns a test for each program, and two with a GPU.
pub(crate) fn trials(paths: &Paths, apps: &[App]) -> Vec<Trial> {
    let (soft, here): (Driver, Driver) = ((SOFT.to_owned(), &[]), (driver_under_test(), &[]));
    let directions = if here.0 == SOFT {
        vec![("to_another", soft, (SOFT.to_owned(), &OTHER[..]))]
    } else {
        vec![("to_soft", here.clone(), (SOFT.to_owned(), &MANY[..])), ("from_soft", soft, here)]
    };
    let is_bound = |app: &App| BOUND.iter().any(|(name, _)| *name == app.name);
    let with_text =
        |app: &&App| matches!(app.kind, Kind::Runtime | Kind::Driver | Kind::Plain | Kind::Cudart12) && !is_bound(app);
    let mut trials = Vec::new();
    for (index, app) in apps.iter().filter(with_text).enumerate() {
        for (direction, from, to) in &directions {
            let (paths, app, way) = (paths.clone(), app.clone(), WAY_NAMES[index % WAY_NAMES.len()]);
            let (from, to) = (from.clone(), to.clone());
            let title = format!("{way}_{direction}::{VARIANT}::{}", app.name);
            trials.push(trial::test(title, move || run_one(&paths, &app, way, &from, &to)));
        }
    }
    trials
}

fn run_one(paths: &Paths, app: &App, way: &str, from: &Driver, to: &Driver) -> Result<(), Failed> {
    let (random, count) = choice(&format!("{way}moved{}", app.name))?;
    let stage = stage(paths, way, from)?;
    let other = self::stage(paths, way, to)?;
    let start = |plan: &Plan<'_>| stage.start_by("job", (&app.name, app.variants()[0]), plan);
    let accepted = if from.0 == to.0 { &[][..] } else { &REFUSALS };
    let run =
        Run::of(&app.name, ExpectedOutput::Text(undisturbed_output(paths, app)?), random, count).accepting(accepted);
    run.and_restored_by(&stage, &other, &start).map_err(show)
}

fn stage(paths: &Paths, way: &str, (driver, settings): &Driver) -> anyhow::Result<Stage> {
    let variables: Vec<_> = settings.iter().map(|&(name, value)| (name, OsString::from(value))).collect();
    Stage::of_driver(paths, way, driver, &variables)
}

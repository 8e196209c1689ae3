//! The programs under test on a machine with a GPU: packed here, run there, reported as JSON and Markdown.
//!
//! The pack holds everything: the release binaries, the programs, both CUDA runtimes, the expected outputs and this program
//! itself. The machine needs only a driver, bash, tar and xz. Four ways are tried, one after the other, since some programs take
//! all memory of the GPU. They are: natively, with a private server each, and with one server over shared memory and over TCP.
//! The parts `apps`, `checkpoint`, `frameworks`, `figures`, `programs` and `opencl` can be run separately: `run.sh checkpoint`.

pub(crate) mod archive;
pub(crate) mod checkpoints;
pub(crate) mod figures;
pub(crate) mod frameworks;
mod machine;
pub(crate) mod opencl_pack;
pub(crate) mod opencl_steps;
pub(crate) mod steps;
pub(crate) mod whole_programs;
use std::env;
use std::fs;
use std::io::ErrorKind;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use katydid_tests::catalog::{self, App, Variant, files};
use katydid_tests::deadline::Limit;
use katydid_tests::opencl as programs;
use katydid_tests::paths::Paths;
use katydid_tests::program::{self, Outcome, ProgramError};
use katydid_tests::server::Server;
use katydid_tests::verdict::judge;
use katydid_tests::way::Way;
use serde_json::{Value, json};

use crate::fetch::packages;
use crate::opencl::{build, rates, third_party};
use crate::output::{line, step};
use crate::shell;
use crate::tree::Tree;
use crate::{apps, dist, jobs};
use frameworks::WayName;

/// Ways on which programs are tried by default.
const DEFAULT_WAYS: [WayName; 4] = [WayName::Native, WayName::Private, WayName::Shm, WayName::Tcp];
/// Time limit of a program; one that takes longer on a GPU hangs.
const PROGRAM_LIMIT: Limit = Limit::Budget(Duration::from_secs(60));
/// Time limit of `katydid bench`.
const BENCH_LIMIT: Limit = Limit::Budget(Duration::from_secs(240));
/// Time limit of a binary of tests.
const TESTS_LIMIT: Limit = Limit::Budget(Duration::from_secs(240));
/// Tests of the whole system that are useful on a real GPU too.
const SYSTEM_TESTS: [&str; 4] = ["faults", "hostile", "opencl", "endurance"];
/// Tests of the part `checkpoint`.
const CHECKPOINT_TESTS: &str = "checkpoint";
/// Installed files in the pack.
const INSTALLED_FILES: [&str; 6] = [
    "bin/katydid",
    "lib/katydid/katydid-criu",
    "lib/katydid/shim/libcuda.so.1",
    "lib/katydid/shim/libkatydid_opencl.so",
    "lib/katydid/shim/libnvidia-ml.so.1",
    "lib/katydid/soft/libcuda.so.1",
];
/// The loader that programs of OpenCL are linked with, by its file name among the libraries.
const LOADER_LIBRARY: &str = "libOpenCL.so.1";
/// Programs that have a test but no expected output, and the driver that one of them takes.
const FIXTURE_PROGRAMS: [&str; 7] =
    ["asked_once", "device_queue", "intruder", "memory_driver", "two_platforms", "which_loader", "memory.so"];
/// The driver of OpenCL that the pack's programs use. It needs no file among the machine's vendors.
const OPENCL_DRIVER: &str = "libnvidia-opencl.so.1\n";
/// Program whose calls are traced.
const TRACED_PROGRAM: &str = "streams_events";
/// Files of the pack: a script, and an archive of everything else, half as large as its content.
const SCRIPT_NAME: &str = "run.sh";
const ARCHIVE_FILE: &str = "pack.tar.xz";
/// Script that starts the pack on the other machine. It unpacks the archive again if that is newer than the unpacked files.
const START_SCRIPT: &str = r#"#!/usr/bin/env bash
# Runs every program natively and through Katydid; the report goes to $OUT, or to report/ beside this script.
# `run.sh apps` runs them alone, `run.sh checkpoint` checkpoints of them in less than ten minutes, `run.sh frameworks` programs of PyTorch,
# JAX, CuPy and others that the machine has (`--help` tells the options), `run.sh figures` takes the promised figures in
# eight minutes, the most wanted first, `run.sh programs` those of programs in four, `run.sh opencl` answers all about
# OpenCL in eight. `--only NAMES` leaves the rest out. What is packed goes to unpacked/.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
pack=$here/unpacked
if [ ! "$pack/done" -nt "$here/pack.tar.xz" ]; then
    rm -rf "$pack" && mkdir "$pack"
    tar --extract --xz --file "$here/pack.tar.xz" --directory "$pack"
    touch "$pack/done"
fi
# PoCL, for programs that move between processors and the GPU, and programs of other people that use OpenCL: what came along, now or
# in a later call.
for part in pocl pocl-beside opencl-programs; do
    if [ -e "$here/$part.tar.xz" ] && [ ! "$pack/$part.done" -nt "$here/$part.tar.xz" ]; then
        tar --extract --xz --file "$here/$part.tar.xz" --directory "$pack"
        touch "$pack/$part.done"
    fi
done
OUT=${OUT:-$here/report} exec "$pack/bin/xtask" gpu-test --run "$pack" "$@"
"#;

/// Makes the folder for the other machine.
pub(crate) fn pack(tree: &Tree, folder: &Path) -> Result<()> {
    let whole = tree.target.join("gpu-pack");
    remove(&whole)?;
    fill(tree, &whole)?;
    step(&format!("packing into {}", folder.display()));
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    archive::make(&folder.join(ARCHIVE_FILE), &whole, ["."])?;
    remove(&whole)?;
    opencl_pack::pack(tree, folder)?;
    let script = folder.join(SCRIPT_NAME);
    fs::write(&script, START_SCRIPT).with_context(|| format!("cannot write {}", script.display()))?;
    shell::run(Command::new("chmod").arg("+x").arg(&script))
}

fn remove(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", folder.display()))
        }
        _ => Ok(()),
    }
}

/// Builds everything, and copies it to the place where it will be unpacked.
fn fill(tree: &Tree, folder: &Path) -> Result<()> {
    dist::run(tree, false)?;
    apps::run(tree)?;
    build::apps(tree)?;
    dist::run(tree, true)?;
    let (from, to) = (tree.paths(), Paths::of_pack(folder));
    for file in INSTALLED_FILES {
        stripped(&tree.target.join("dist-release").join(file), &to.dist.join(file))?;
    }
    dist::second_names(&to.dist.join("lib/katydid"))?;
    for app in catalog::apps()?.iter().filter(|app| app.travels()) {
        for &variant in app.variants() {
            stripped(&from.program(&app.name, variant), &to.program(&app.name, variant))?;
        }
    }
    for (runtimes, file) in from.runtimes.iter().zip(["libcudart.so.13", "libcudart.so.12"]) {
        stripped(&runtimes.join(file), &folder.join("runtimes").join(file))?;
    }
    for app in catalog::apps()?.iter().filter(|app| app.is_test() && app.travels()) {
        copy(&from.expected.path(&app.name)?, &to.expected.path(&app.name)?)?;
    }
    for file in fs::read_dir(&from.frameworks).context("cannot read the programs of frameworks")? {
        let file = file?;
        if file.file_type()?.is_file() {
            copy(&file.path(), &to.frameworks.join(file.file_name()))?;
        }
    }
    packages::unpack_for(
        machine::PYTHON_VERSION,
        &to.frameworks.join("packages"),
        &tree.root.join("xtask/pack-python.txt"),
    )?;
    pack_criu(tree, &to)?;
    pack_opencl(&from, &to)?;
    third_party::fetch(tree)?;
    pack_others(tree, &to)?;
    for test in SYSTEM_TESTS.into_iter().chain([CHECKPOINT_TESTS]) {
        stripped(&test_binary(tree, test)?, &folder.join("tests").join(test))?;
    }
    pack_forms(tree, folder)?;
    stripped(&env::current_exe()?, &folder.join("bin/xtask"))
}

/// Copies CRIU's root, which `dist` has placed.
fn pack_criu(tree: &Tree, to: &Paths) -> Result<()> {
    let (from, target) = (tree.target.join("dist-release/lib/katydid/criu"), to.dist.join("lib/katydid/criu"));
    if !from.exists() {
        bail!("CRIU is not in {}; `cargo xtask setup` fetches it", from.display());
    }
    fs::create_dir_all(&target).with_context(|| format!("cannot make {}", target.display()))?;
    shell::run(Command::new("cp").args(["--archive", "--no-target-directory"]).arg(&from).arg(&target))
}

/// Copies programs of OpenCL except those with ranks of MPI, their expected outputs, and the loader that they are linked with.
/// Also copies the files that name Katydid's library and the machine's driver.
fn pack_opencl(from: &Paths, to: &Paths) -> Result<()> {
    if !programs::has_driver(from) {
        bail!("there are no programs of OpenCL; `cargo xtask setup` fetches what they are built with");
    }
    FIXTURE_PROGRAMS
        .iter()
        .try_for_each(|name| stripped(&programs::program(from, name), &programs::program(to, name)))?;
    for name in programs::programs(from)?.iter().filter(|name| !name.starts_with(build::RANKED_PREFIX)) {
        stripped(&programs::program(from, name), &programs::program(to, name))?;
        copy(&from.expected_opencl.path(name)?, &to.expected_opencl.path(name)?)?;
    }
    copy(&programs::libraries(from).join(LOADER_LIBRARY), &programs::libraries(to).join(LOADER_LIBRARY))?;
    if let (Some(khronos), to) = (programs::khronos(from), programs::khronos_folder(to)) {
        copy(&khronos.join(LOADER_LIBRARY), &to.join(LOADER_LIBRARY))?;
    }
    let file = programs::vendors(to).join("machine.icd");
    fs::create_dir_all(programs::vendors(to)).context("cannot make the vendors' folder")?;
    fs::write(&file, OPENCL_DRIVER).with_context(|| format!("cannot write {}", file.display()))?;
    dist::opencl(&to.dist.join("lib/katydid"))
}

/// Copies third-party programs that measure, with their input files.
fn pack_others(tree: &Tree, to: &Paths) -> Result<()> {
    let (from, folder) = (third_party::folder(tree), rates::packed(to));
    for file in rates::PACKED_FILES {
        let target = folder.join(file);
        let parent = target.parent().context("a file in no folder")?;
        fs::create_dir_all(parent).with_context(|| format!("cannot make {}", parent.display()))?;
        // The files themselves are copied instead of links to them.
        let mut copy = Command::new("cp");
        shell::run(
            copy.args(["--recursive", "--dereference", "--no-target-directory"]).arg(from.join(file)).arg(&target),
        )?;
    }
    Ok(())
}

/// Copies the catalogue of instruction forms, the recorded answers, and the program that asks a GPU.
fn pack_forms(tree: &Tree, folder: &Path) -> Result<()> {
    shell::run(&mut shell::cargo(&tree.root, &["build", "--quiet", "--package", "katydid-ptx-forms"]))?;
    stripped(&tree.target.join("debug/katydid-forms"), &folder.join("bin/katydid-forms"))?;
    for part in ["catalog", "programs", "data"] {
        let root = tree.root.join("crates/ptx-forms");
        for file in files::below(&root.join(part))? {
            copy(&file, &folder.join("forms").join(file.strip_prefix(&root)?))?;
        }
    }
    Ok(())
}

/// Builds a binary of tests and returns where cargo put it.
fn test_binary(tree: &Tree, name: &str) -> Result<PathBuf> {
    let arguments = ["test", "--quiet", "-p", "katydid-tests", "--no-run", "--message-format", "json", "--test", name];
    let messages = shell::read(&mut shell::cargo(&tree.root, &arguments))?;
    let artifacts = messages.lines().filter_map(|message| serde_json::from_str::<Value>(message).ok());
    let mut binaries = artifacts.filter(|artifact| artifact["target"]["name"] == name);
    let path = binaries.find_map(|artifact| artifact["executable"].as_str().map(PathBuf::from));
    path.with_context(|| format!("cargo built no test binary {name}"))
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    let folder = to.parent().map_or_else(PathBuf::new, Path::to_owned);
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    fs::copy(from, to).with_context(|| format!("cannot copy {}", from.display()))?;
    Ok(())
}

/// Makes a copy without debug symbols.
fn stripped(from: &Path, to: &Path) -> Result<()> {
    copy(from, to)?;
    shell::run(Command::new("strip").arg("--strip-unneeded").arg(to))
}

/// One run of one program.
struct Run {
    way: String,
    app: String,
    variant: Variant,
    milliseconds: u128,
    fault: Option<String>,
}

/// A part of the run that can be had by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum RunPart {
    /// Our own programs, natively and through Katydid.
    Apps,
    /// Checkpoints of all of them, in less than ten minutes.
    Checkpoint,
    /// Programs of PyTorch, JAX, CuPy, Triton, numba and others.
    Frameworks,
    /// The figures that are promised, the most wanted first, in eight minutes.
    #[value(alias = "bench")]
    Figures,
    /// Programs of the kinds in Figures 4 to 7 of the Cricket paper, in less than four minutes.
    Programs,
    /// OpenCL: tests, checkpoints, moves between PoCL and the GPU, calls and copies, in five minutes.
    Opencl,
}

/// Runs the pack, or a part of it, and writes the report.
pub(crate) fn run(folder: &Path, part: Option<RunPart>, options: &frameworks::Options) -> Result<ExitCode> {
    let folder = folder.canonicalize().with_context(|| format!("{} is not a pack", folder.display()))?;
    let report = env::var_os("OUT").map_or_else(|| folder.join("report"), PathBuf::from);
    fs::create_dir_all(&report).with_context(|| format!("cannot make {}", report.display()))?;
    match part {
        Some(RunPart::Apps) => run_apps(&folder, &report, options),
        Some(RunPart::Checkpoint) => steps::run(checkpoints::CHECKPOINTS_PLAN, &folder, &report, &options.only),
        Some(RunPart::Frameworks) => frameworks::run_packed(&folder, &report, options),
        Some(RunPart::Figures) => steps::run(figures::FIGURES_PLAN, &folder, &report, &options.only),
        Some(RunPart::Programs) => whole_programs::run_packed(&folder, &report, options),
        Some(RunPart::Opencl) => steps::run(opencl_steps::OPENCL_PLAN, &folder, &report, &options.only),
        None => run_all(&folder, &report),
    }
}

/// Runs only the project's own programs.
fn run_apps(folder: &Path, report: &Path, options: &frameworks::Options) -> Result<ExitCode> {
    let paths = Paths::of_pack(folder);
    let server = Server::start(&paths, "auto", &[])?;
    let ways = options.ways_or(&DEFAULT_WAYS);
    let runs = on_ways(&paths, &server, &ways, &options.only, options.jobs.map_or(1, NonZero::get))?;
    fs::write(report.join("server.log"), server.log()).context("cannot write to the report")?;
    let text = table(&machine::describe(), &runs) + &faults(&runs);
    fs::write(report.join("apps.md"), text).context("cannot write to the report")?;
    Ok(ending(&runs, &[]))
}

/// Runs programs natively and through Katydid, `at_a_time` at once. `only` has their names; all run if it is empty.
fn on_ways(paths: &Paths, server: &Server, ways: &[WayName], only: &[String], at_a_time: usize) -> Result<Vec<Run>> {
    let is_wanted = |app: &App| only.is_empty() || only.contains(&app.name);
    let apps: Vec<App> =
        catalog::apps()?.into_iter().filter(|app| app.is_test() && app.travels() && is_wanted(app)).collect();
    let mut runs = Vec::new();
    for way in ways.iter().map(|way| way.way(server, "auto")) {
        step(&way.to_string());
        let can_run = |app: &&App| app.runs_directly() || !matches!(way, Way::Direct { .. });
        let variants = |app| App::variants(app).iter().map(move |variant| (app, *variant));
        let cases = apps.iter().filter(can_run).flat_map(variants).collect();
        runs.extend(jobs::each(cases, at_a_time, |(app, variant)| run_one(paths, &way, app, variant)));
    }
    Ok(runs)
}

/// Prints how many runs and other tests passed, and returns the exit code.
fn ending(runs: &[Run], opencl_passed: &[bool]) -> ExitCode {
    let all = runs.iter().map(|run| run.fault.is_some()).chain(opencl_passed.iter().copied());
    let failed = all.filter(|failed| *failed).count();
    line(&format!("{} passed, {failed} failed", runs.len() + opencl_passed.len() - failed));
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run_all(folder: &Path, report: &Path) -> Result<ExitCode> {
    let paths = Paths::of_pack(folder);
    let machine = machine::describe();
    step(&format!("{} with driver {}", machine["gpu"], machine["driver"]));
    let server = Server::start(&paths, "auto", &[])?;
    let runs = on_ways(&paths, &server, &DEFAULT_WAYS, &[], 1)?;
    let served = json!({ "server": server.admin("/v1/server")?, "sessions": server.admin("/v1/sessions")? });
    fs::write(report.join("server.log"), server.log())?;
    drop(server);
    let tests: Vec<Result<Outcome>> =
        SYSTEM_TESTS.iter().map(|test| tests_of_the_system(folder, report, test, TESTS_LIMIT)).collect();
    let forms = forms(folder, report);
    let bench = katydid(&paths, &["bench", "--json"], BENCH_LIMIT);
    let traced = trace(&paths, report);
    write_report(report, &machine, &runs, &served, bench.as_ref().ok(), traced.as_ref().ok())?;
    let others: Vec<bool> =
        tests.iter().map(Result::is_err).chain([forms.is_err(), bench.is_err(), traced.is_err()]).collect();
    Ok(ending(&runs, &others))
}

fn run_one(paths: &Paths, way: &Way, app: &App, variant: Variant) -> Run {
    let start = Instant::now();
    let outcome = program::run(&mut way.command(paths, &paths.program(&app.name, variant)), PROGRAM_LIMIT);
    let (milliseconds, fault) = match outcome {
        Ok(outcome) => {
            let fault = judge(paths, &app.name, &outcome).err().map(|fault| fault.to_string());
            (outcome.took.as_millis(), fault)
        }
        Err(error) => (start.elapsed().as_millis(), Some(error.to_string())),
    };
    let verdict = fault.as_ref().map_or("ok".to_owned(), |fault| format!("FAILED: {fault}"));
    line(&format!("{way}::{variant}::{} ({milliseconds} ms) ... {verdict}", app.name));
    Run { way: way.to_string(), app: app.name.clone(), variant, milliseconds, fault }
}

/// Runs `katydid`, which must succeed.
fn katydid(paths: &Paths, arguments: &[&str], limit: Limit) -> Result<Outcome> {
    succeeds(Command::new(paths.katydid()).args(arguments), limit)
}

/// Runs one binary of tests on the GPU; its output goes to the report.
fn tests_of_the_system(folder: &Path, report: &Path, name: &str, limit: Limit) -> Result<Outcome> {
    let mut command = steps::tests(folder, name);
    command.arg("--test-threads=2");
    succeeds_into(&mut command, limit, report, name)
}

/// Asks the GPU every form and program again; answers that differ from the recorded ones go to the report.
fn forms(folder: &Path, report: &Path) -> Result<Outcome> {
    let mut command = Command::new(folder.join("bin/katydid-forms"));
    command.arg("--root").arg(folder.join("forms")).args(["run", "--library", "libcuda.so.1"]);
    succeeds_into(&mut command, TESTS_LIMIT, report, "forms")
}

/// Runs a command that must succeed; shows its output if it fails.
fn succeeds(command: &mut Command, limit: Limit) -> Result<Outcome> {
    judged(command, |command| program::run(command, limit))
}

/// Runs a command that must succeed; its output goes to the report under `name` as it comes.
fn succeeds_into(command: &mut Command, limit: Limit, report: &Path, name: &str) -> Result<Outcome> {
    let [out, err] = ["txt", "err"].map(|end| report.join(format!("{name}.{end}")));
    judged(command, |command| program::run_into(command, limit, [&out, &err]))
}

fn judged(command: &mut Command, run: impl FnOnce(&mut Command) -> Result<Outcome, ProgramError>) -> Result<Outcome> {
    let shown = shell::show_command(command);
    step(&shown);
    let outcome = run(command).inspect_err(|error| line(&error.to_string()))?;
    if !outcome.status.success() {
        line(&format!("{}\n{}{}", outcome.ending(), outcome.text(), outcome.errors()));
        bail!("did not succeed: {shown}");
    }
    Ok(outcome)
}

/// Traces one program; the table is the result, the timeline goes to the report.
fn trace(paths: &Paths, report: &Path) -> Result<Outcome> {
    let timeline = report.join("trace.json").to_string_lossy().into_owned();
    let program = paths.program(TRACED_PROGRAM, Variant::Static).to_string_lossy().into_owned();
    katydid(paths, &["trace", "-o", &timeline, "--", &program], PROGRAM_LIMIT)
}

fn write_report(
    report: &Path,
    machine: &Value,
    runs: &[Run],
    served: &Value,
    bench: Option<&Outcome>,
    traced: Option<&Outcome>,
) -> Result<()> {
    let bench_text = bench.map(Outcome::text).unwrap_or_default();
    let list: Vec<Value> = runs.iter().map(as_json).collect();
    let bench: Value = serde_json::from_str(&bench_text).unwrap_or_default();
    let whole = json!({ "machine": machine, "runs": list, "after": served, "bench": bench });
    fs::write(report.join("report.json"), serde_json::to_vec_pretty(&whole)?).context("cannot write report.json")?;
    let table = traced.map(Outcome::errors).unwrap_or_default();
    fs::write(report.join("report.md"), as_markdown(machine, runs, &bench_text, &table))
        .context("cannot write report.md")
}

fn as_json(run: &Run) -> Value {
    json!({
        "way": run.way,
        "app": run.app,
        "variant": run.variant.to_string(),
        "milliseconds": u64::try_from(run.milliseconds).unwrap_or(u64::MAX),
        "fault": run.fault,
    })
}

/// Returns the table of programs, then the bench, the trace, and every fault in full.
fn as_markdown(machine: &Value, runs: &[Run], bench: &str, trace: &str) -> String {
    let measured = format!(
        "\n## katydid bench --json\n\n```json\n{bench}\n```\n\n## katydid trace {TRACED_PROGRAM}\n\n```text\n{trace}\n```\n"
    );
    [table(machine, runs), measured, faults(runs)].concat()
}

/// Returns a table with a row for each program and a column for each way.
fn table(machine: &Value, runs: &[Run]) -> String {
    let mut ways: Vec<&str> = Vec::new();
    let mut rows: Vec<(&str, Variant)> = Vec::new();
    for run in runs {
        if !ways.contains(&run.way.as_str()) {
            ways.push(&run.way);
        }
        if !rows.contains(&(run.app.as_str(), run.variant)) {
            rows.push((&run.app, run.variant));
        }
    }
    let text = |key: &str| machine[key].as_str().unwrap_or("unknown").to_owned();
    let mut out = format!("# {}, driver {}, {}\n\n", text("gpu"), text("driver"), text("date"));
    out += &format!("| program | runtime | {} |\n|---|---|{}\n", ways.join(" | "), "---:|".repeat(ways.len()));
    for (app, variant) in rows {
        let cell = |way: &&str| {
            let found = runs.iter().find(|run| run.way == **way && run.app == app && run.variant == variant);
            found.map_or(String::new(), |run| match run.fault {
                None => format!("{} ms", run.milliseconds),
                Some(_) => "**failed**".to_owned(),
            })
        };
        out += &format!("| {app} | {variant} | {} |\n", ways.iter().map(cell).collect::<Vec<_>>().join(" | "));
    }
    out
}

/// Returns every fault in full.
fn faults(runs: &[Run]) -> String {
    let mut out = String::new();
    for run in runs {
        if let Some(fault) = &run.fault {
            out += &format!("\n## {}::{}::{}\n\n```text\n{fault}\n```\n", run.way, run.variant, run.app);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    #[test]
    fn figures_have_a_second_name() {
        for name in ["figures", "bench"] {
            assert_eq!(RunPart::from_str(name, false), Ok(RunPart::Figures));
        }
    }
}

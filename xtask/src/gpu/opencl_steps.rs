//! `gpu-test opencl`: all tests of OpenCL on a GPU machine, in less than ten minutes. PyOpenCL's own tests come in addition, and
//! take separate calls (`--only pyopencl`, `--only arrays`).
//!
//! | step | what | in the report |
//! |---|---|---|
//! | tests | every program on every way, NVIDIA's OpenCL natively beside Katydid | `tests.out` |
//! | figures | how long a program with 1 GiB is paused for checkpoints, and for moves between PoCL and the GPU | `figures.json` |
//! | bench | calls and copies, natively beside Katydid | `bench.json` |
//! | rates | clpeak and hashcat natively beside Katydid | `rates.json` |
//! | programs | CLBlast and its tests, ViennaCL and its examples, PyOpenCL, OpenMM, clinfo, hashcat and clpeak on all ways, if they came along | `programs.txt` |
//! | checkpoints | every program, checkpointed, killed and restored | `checkpoints.out` |
//! | pyopencl | PyOpenCL's own tests on all ways, but for | `pyopencl.txt` |
//! | arrays | those of arrays and their algorithms | `arrays.txt` |

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use katydid_tests::deadline::Limit;
use katydid_tests::job::{self, Job, TestFolders};
use katydid_tests::opencl as programs;
use katydid_tests::paths::Paths;
use katydid_tests::program::{self, Outcome};
use katydid_tests::server::Server;
use katydid_tests::way::Way;
use serde_json::{Value, json};

use crate::gpu::steps::{self, Plan, Step, Tool};
use crate::opencl::rates;
use crate::output::line;

/// Time for all steps; working steps take half of it.
const OPENCL_TIME_BUDGET: Duration = Duration::from_secs(570);
const OPENCL_STEPS: [Step; 8] = [
    Step { name: "tests", tool: Tool::Tests("opencl"), arguments: "--test-threads=8", seconds: 200, ..Step::ONCE },
    Step { name: "figures", tool: Tool::Function(figures), ..Step::ONCE },
    Step { name: "bench", tool: Tool::Function(bench), ..Step::ONCE },
    Step { name: "rates", tool: Tool::Function(rates), ..Step::ONCE },
    Step { name: "programs", tool: Tool::Function(other_programs), ..Step::ONCE },
    Step {
        name: "checkpoints",
        tool: Tool::Tests("checkpoint"),
        arguments: "opencl --test-threads=8",
        seconds: 240,
        ..Step::ONCE
    },
    Step { name: "pyopencl", tool: Tool::Function(tests_of_pyopencl), ..Step::ONCE },
    Step { name: "arrays", tool: Tool::Function(tests_of_arrays), ..Step::ONCE },
];

/// Plan of the part.
pub(crate) const OPENCL_PLAN: Plan = Plan { steps: &OPENCL_STEPS, budget: OPENCL_TIME_BUDGET };

/// Time limits of steps that are functions.
const OPENCL_BENCH_LIMIT: Limit = Limit::Budget(Duration::from_secs(80));
const PROGRAMS_LIMIT: Limit = Limit::Budget(Duration::from_secs(240));
/// Third-party programs, the fastest first.
const THIRD_PARTY_PROGRAMS: [&str; 14] = [
    "clinfo",
    "blas",
    "vienna",
    "vienna_custom-context",
    "vienna_custom-kernels",
    "vienna_fft",
    "vienna_matrix-free",
    "pyopencl",
    "openmm",
    "hashcat",
    "clpeak",
    "clblast_test_xdot",
    "clblast_test_xaxpy",
    "clblast_test_xgemv",
];
/// PyOpenCL's tests, each of which needs a compiler for its kernels.
const PYOPENCL_TESTS: [&str; 5] =
    ["test_enqueue_copy", "test_arrays_in_structs", "test_wrapper", "test_clmath", "test_clrandom"];
/// Slowest tests, and the number of parts of each, which run at once.
const ARRAY_TESTS: [(&str, usize); 2] = [("test_array", 11), ("test_algorithm", 4)];
/// Time limit of a program in seconds: for all ways at once, or for each way of a part.
const OPENCL_PROGRAM_LIMIT_SECONDS: &str = "110";
/// Time limit of one command about a job.
const COMMAND_LIMIT: Limit = Limit::Budget(Duration::from_secs(60));
/// Program that is checkpointed and moved, with its arguments: MiB, steps, milliseconds between two steps.
const CHECKPOINTED_PROGRAM: &str = "kept_large";
const LARGE_ARGUMENTS: [&str; 3] = ["1024", "400", "20"];
const BRIEF_ARGUMENTS: [&str; 3] = ["1024", "400", "0"];
/// Variable with a list of drivers, of which a program takes the first.
const DRIVERS_VARIABLE: &str = "KATYDID_OPENCL_DRIVERS";

/// Returns the paths of a pack, with its loader and drivers of OpenCL.
fn paths(folder: &Path) -> Paths {
    programs::paths(&Paths::of_pack(folder))
}

/// Measures calls and copies.
fn bench(folder: &Path, report: &Path) -> Result<()> {
    let paths = &paths(folder);
    let mut command = Command::new(paths.katydid());
    command.args(["bench", "opencl", "--json", "--driver", &steps::driver()]).envs(programs::driver(paths));
    let files = [report.join("bench.json"), report.join("bench.err")];
    let outcome = program::run_into(&mut command, OPENCL_BENCH_LIMIT, [&files[0], &files[1]])?;
    line(outcome.text().trim_end());
    ensure!(outcome.status.success(), "{}\n{}", outcome.ending(), outcome.errors());
    Ok(())
}

/// Measures the rates of programs, natively and through Katydid.
fn rates(folder: &Path, report: &Path) -> Result<()> {
    let paths = &paths(folder);
    let server = server(paths, &[])?;
    let rates = rates::measure(paths, &server, &rates::packed(paths), rates::FEW_ROUNDS)?;
    fs::write(report.join("rates.json"), rates.to_string()).context("cannot write to the report")
}

/// Compares the results of third-party programs.
fn other_programs(folder: &Path, report: &Path) -> Result<()> {
    on_all_ways(folder, report, "programs", &THIRD_PARTY_PROGRAMS)
}

fn tests_of_pyopencl(folder: &Path, report: &Path) -> Result<()> {
    on_all_ways(folder, report, "pyopencl", &PYOPENCL_TESTS)
}

fn tests_of_arrays(folder: &Path, report: &Path) -> Result<()> {
    let parts = |(name, all): (&str, usize)| (1..=all).map(|part| format!("{name}.{part}of{all}")).collect::<Vec<_>>();
    let names: Vec<String> = ARRAY_TESTS.into_iter().flat_map(parts).collect();
    on_all_ways(folder, report, "arrays", &names)
}

/// Runs third-party programs natively, over shared memory and over TCP. The report omits programs that did not get a turn.
fn on_all_ways(folder: &Path, report: &Path, step: &str, names: &[impl AsRef<OsStr>]) -> Result<()> {
    let paths = &paths(folder);
    let folder = paths.opencl().join("programs");
    if !folder.exists() {
        line("there is no opencl-programs.tar.xz here: nothing was run");
        return Ok(());
    }
    let mut script = Command::new("bash");
    script.arg(folder.join("run.sh")).arg(&folder).args(names);
    script.env("OPENCL", paths.opencl()).env("VENDORS", programs::vendors(paths));
    script.env("KATYDID", paths.katydid()).env("DRIVER", steps::driver());
    script.env("BUDGET", OPENCL_PROGRAM_LIMIT_SECONDS);
    if !programs::is_pocl(paths) {
        script.env("TOGETHER", "1");
    }
    let files = ["txt", "err"].map(|end| report.join(format!("{step}.{end}")));
    let outcome = program::run_into(&mut script, PROGRAMS_LIMIT, [&files[0], &files[1]]);
    for text in files.iter().filter_map(|file| fs::read_to_string(file).ok()) {
        line(text.trim_end());
    }
    let outcome = outcome?;
    ensure!(outcome.status.success(), "{}", outcome.ending());
    Ok(())
}

/// Measures checkpoints on the machine's driver, and moves to PoCL and back if it is there.
fn figures(folder: &Path, report: &Path) -> Result<()> {
    let paths = &paths(folder);
    let machine = checkpoints(paths, &[]);
    let moved = match programs::pocl(paths) {
        Some(pocl) => moves(paths, &pocl),
        None => Ok(json!("there is no PoCL here: nothing was moved")),
    };
    let shown = |result: &Result<Value>| result.as_ref().map_or_else(|error| json!(format!("{error:#}")), Value::clone);
    let all = json!({ "checkpoints": shown(&machine), "moves": shown(&moved) });
    fs::write(report.join("figures.json"), all.to_string()).context("cannot write to the report")?;
    line(&format!("checkpoints: {}\nmoves: {}", all["checkpoints"], all["moves"]));
    machine.and(moved).map(drop)
}

/// Starts a server with these variables in addition to those of the machine's driver.
fn server(paths: &Paths, further: &[(&'static str, OsString)]) -> Result<Server> {
    let variables = [&programs::driver(paths)[..], further].concat();
    Ok(Server::start_with(paths, &steps::driver(), &[], &variables)?)
}

fn start<'a>(paths: &'a Paths, home: &'a TestFolders, server: &Server, arguments: &[&str]) -> Result<Job<'a>> {
    let [shm, _] = Way::through(server);
    let libraries = programs::libraries(paths).display().to_string();
    let plan = job::Plan { arguments, variables: &[("LD_LIBRARY_PATH", &libraries)], ..job::Plan::default() };
    let mut job =
        Job::start(paths, home, &shm, CHECKPOINTED_PROGRAM, &programs::program(paths, CHECKPOINTED_PROGRAM), &plan)?;
    job.wait_for("step 1:")?;
    Ok(job)
}

/// Parses the JSON output of a command.
fn parse_output(outcome: &Outcome) -> Result<Value> {
    ensure!(outcome.status.success(), "{}\n{}{}", outcome.ending(), outcome.text(), outcome.errors());
    let text = outcome.text();
    serde_json::from_str(text.lines().last().unwrap_or_default()).with_context(|| text.clone())
}

/// Makes two checkpoints of the running program and a third one that ends it, then restores it and checks its output.
fn checkpoints(paths: &Paths, further: &[(&'static str, OsString)]) -> Result<Value> {
    let (server, home) = (server(paths, further)?, TestFolders::new()?);
    let right = program::run(&mut undisturbed(paths, &server), COMMAND_LIMIT)?.text();
    let job = start(paths, &home, &server, &LARGE_ARGUMENTS)?;
    let (image, mut figures) = (home.image("image"), Vec::new());
    for options in [&["--leave-running"][..], &["--leave-running"], &[]] {
        let checkpoint = parse_output(&job.checkpoint(&image, options)?)?;
        figures.push(json!({
            "stopped_us": checkpoint["stopped_us"], "took_us": checkpoint["took_us"],
            "stages_us": checkpoint["stages_us"],
        }));
    }
    drop(job.finish(COMMAND_LIMIT)?);
    let [shm, _] = Way::through(&server);
    let started_at = Instant::now();
    let restored = Job::restore(paths, &home, &shm, CHECKPOINTED_PROGRAM, &image, &job::Plan::default())?;
    let outcome = restored.finish(COMMAND_LIMIT)?;
    ensure!(outcome.status.success() && right.ends_with(&outcome.text()), "wrong after a restore: {}", outcome.text());
    Ok(json!({ "checkpoints": figures, "restored_and_ended_ms": started_at.elapsed().as_millis() as u64 }))
}

fn undisturbed(paths: &Paths, server: &Server) -> Command {
    let [shm, _] = Way::through(server);
    let mut command = shm.command(paths, &programs::program(paths, CHECKPOINTED_PROGRAM));
    command.args(BRIEF_ARGUMENTS).env("LD_LIBRARY_PATH", programs::libraries(paths));
    command
}

/// Moves the running program from PoCL to the machine's device and back; its output must be the same as without a move.
fn moves(paths: &Paths, pocl: &Path) -> Result<Value> {
    let drivers: OsString = [pocl.as_os_str(), programs::library(paths)?.as_ref()].join(":".as_ref());
    let (server, home) = (server(paths, &[(DRIVERS_VARIABLE, drivers)])?, TestFolders::new()?);
    let right = program::run(&mut undisturbed(paths, &server), COMMAND_LIMIT)?.text();
    let job = start(paths, &home, &server, &LARGE_ARGUMENTS)?;
    let mut figures = Vec::new();
    for device in ["gpu", "cpu"] {
        let moved = parse_output(&program::run(
            &mut job.migrate_command(&server.unix(), &["--device", device]),
            COMMAND_LIMIT,
        )?)?;
        figures.push(json!({
            "to": device, "rehearsed": moved["rehearsed"], "stopped_us": moved["stopped_us"], "took_us": moved["took_us"],
            "stages_us": moved["stages_us"]
        }));
    }
    let checkpoint = parse_output(&job.checkpoint(&home.image("image"), &["--leave-running"])?)?;
    let outcome = job.finish(COMMAND_LIMIT)?;
    ensure!(outcome.status.success() && outcome.text() == right, "wrong after moves: {}", outcome.text());
    Ok(
        json!({ "moves": figures, "pocl_checkpoint": { "stopped_us": checkpoint["stopped_us"], "took_us": checkpoint["took_us"] } }),
    )
}

//! `gpu-test opencl`: all that is asked of a GPU machine about OpenCL, in less than ten minutes.
//!
//! | step | what | in the report |
//! |---|---|---|
//! | tests | every program on every way, NVIDIA's OpenCL natively beside Katydid | `opencl.txt` |
//! | figures | how long a program with 1 GiB stands still for checkpoints, and for moves between PoCL and the GPU | `figures.json` |
//! | bench | calls and copies, natively beside Katydid | `bench.json` |
//! | rates | clpeak and hashcat natively beside Katydid | `rates.json` |
//! | programs | CLBlast, ViennaCL and PyOpenCL with its own tests, natively beside Katydid, if they came along | `programs.txt` |
//! | checkpoints | every program, checkpointed, killed and restored | `checkpoint.txt` |

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use katydid_tests::job::{Home, Job, Plan};
use katydid_tests::opencl as programs;
use katydid_tests::places::{DRIVER_VARIABLE, Places};
use katydid_tests::program::{self, Outcome};
use katydid_tests::server::Server;
use katydid_tests::way::Way;
use serde_json::{Value, json};

use crate::output::{line, step};
use crate::{gpu, opencl_rates, steps};

/// Limits of the steps. What works takes half of them.
const TESTS_LIMIT: Duration = Duration::from_secs(90);
const BENCH_LIMIT: Duration = Duration::from_secs(80);
const PROGRAMS_LIMIT: Duration = Duration::from_secs(240);
const CHECKPOINTS_LIMIT: Duration = Duration::from_secs(240);
/// Programs of other people that are run, those first which take least; and seconds for one on one way.
const PROGRAMS: [&str; 9] = [
    "blas",
    "vienna",
    "pyopencl",
    "test_enqueue_copy",
    "test_arrays_in_structs",
    "test_wrapper",
    "test_clmath",
    "test_clrandom",
    "test_array",
];
const PROGRAM_LIMIT: &str = "90";
/// Of one command about a job.
const LIMIT: Duration = Duration::from_secs(60);
/// The program that is checkpointed and moved: MiB, steps, milliseconds between two.
const PROGRAM: &str = "kept_large";
const LARGE: [&str; 3] = ["1024", "400", "20"];
const BRIEF: [&str; 3] = ["1024", "400", "0"];
/// Names the steps to do, with commas between them, where a machine's time is short; else all are done.
const STEPS: &str = "KATYDID_OPENCL_STEPS";
/// Names drivers, the first of which a program takes.
const DRIVERS: &str = "KATYDID_OPENCL_DRIVERS";

/// Does all steps, whether or not one fails.
pub(crate) fn run(folder: &Path, report: &Path) -> Result<ExitCode> {
    let places = programs::places(&Places::of_pack(folder));
    fs::write(report.join("machine.json"), gpu::machine().to_string()).context("cannot write to the report")?;
    let steps: [(&str, &dyn Fn() -> Result<()>); 6] = [
        ("tests", &|| tests(folder, report, "opencl", &["--test-threads=4"], TESTS_LIMIT)),
        ("figures", &|| figures(&places, report)),
        ("bench", &|| bench(&places, report)),
        ("rates", &|| rates(&places, report)),
        ("programs", &|| other_programs(&places, report)),
        ("checkpoints", &|| tests(folder, report, "checkpoint", &["opencl", "--test-threads=8"], CHECKPOINTS_LIMIT)),
    ];
    let wanted = std::env::var(STEPS).unwrap_or_default();
    let is_wanted = |name: &str| wanted.is_empty() || wanted.split(',').any(|one| one == name);
    let mut failed = 0;
    for (name, work) in steps.iter().filter(|(name, _)| is_wanted(name)) {
        step(name);
        let begun = Instant::now();
        let outcome = work();
        let told = outcome.as_ref().map_or_else(|error| format!("{error:#}"), |()| "ok".to_owned());
        line(&format!("{name} ... {told} ({:.0} s)", begun.elapsed().as_secs_f64()));
        failed += u32::from(outcome.is_err());
    }
    line(&format!("{} steps, {failed} failed", steps.len()));
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// One binary of tests; how each test went is said, and all of it lies in the report.
fn tests(folder: &Path, report: &Path, name: &str, arguments: &[&str], limit: Duration) -> Result<()> {
    let outcome = program::run(steps::tests(folder, name, &driver()).args(arguments), limit);
    // Also of a run that was cut off: what failed until then is told there.
    let said = match &outcome {
        Ok(outcome) => outcome.text() + &outcome.errors(),
        Err(error) => error.to_string(),
    };
    fs::write(report.join(format!("{name}.txt")), said).context("cannot write")?;
    let outcome = outcome?;
    steps::tell_verdicts(&outcome.text());
    ensure!(outcome.status.success(), "{}", outcome.ending());
    Ok(())
}

/// CUDA's, of the servers; `auto` unless the environment says otherwise, as where there is no GPU.
fn driver() -> String {
    std::env::var(DRIVER_VARIABLE).unwrap_or_else(|_| "auto".to_owned())
}

/// Calls and copies.
fn bench(places: &Places, report: &Path) -> Result<()> {
    let mut command = Command::new(places.katydid());
    command.args(["bench", "opencl", "--json", "--driver", &driver()]).envs(programs::driver(places));
    let outcome = program::run(&mut command, BENCH_LIMIT)?;
    fs::write(report.join("bench.json"), &outcome.stdout).context("cannot write to the report")?;
    line(outcome.text().trim_end());
    ensure!(outcome.status.success(), "{}\n{}", outcome.ending(), outcome.errors());
    Ok(())
}

/// What programs reach, natively and through Katydid.
fn rates(places: &Places, report: &Path) -> Result<()> {
    let server = server(places, &[])?;
    let rates = opencl_rates::measure(places, &server, &opencl_rates::packed(places), opencl_rates::FEW)?;
    fs::write(report.join("rates.json"), rates.to_string()).context("cannot write to the report")
}

/// What other people's programs compute, natively and over shared memory. PyOpenCL's tests are many: those that did not come to
/// their turn are not in the report.
fn other_programs(places: &Places, report: &Path) -> Result<()> {
    let folder = places.opencl().join("programs");
    if !folder.exists() {
        line("there is no opencl-programs.tar.xz here: nothing was run");
        return Ok(());
    }
    let mut script = Command::new("bash");
    script.arg(folder.join("run.sh")).arg(&folder).args(PROGRAMS);
    script.env("OPENCL", places.opencl()).env("KATYDID", places.katydid()).env("DRIVER", driver());
    script.env("WAYS", "native shm").env("LIMIT", PROGRAM_LIMIT);
    let outcome = program::run(&mut script, PROGRAMS_LIMIT);
    let said = match &outcome {
        Ok(outcome) => outcome.text() + &outcome.errors(),
        Err(error) => error.to_string(),
    };
    fs::write(report.join("programs.txt"), &said).context("cannot write to the report")?;
    line(said.trim_end());
    let outcome = outcome?;
    ensure!(outcome.status.success(), "{}", outcome.ending());
    Ok(())
}

/// Checkpoints on the machine's driver, and moves to PoCL and back where there is one.
fn figures(places: &Places, report: &Path) -> Result<()> {
    let machine = checkpoints(places, &[]);
    let moved = match programs::pocl(places) {
        Some(pocl) => moves(places, &pocl),
        None => Ok(json!("there is no PoCL here: nothing was moved")),
    };
    let shown = |result: &Result<Value>| result.as_ref().map_or_else(|error| json!(format!("{error:#}")), Value::clone);
    let all = json!({ "checkpoints": shown(&machine), "moves": shown(&moved) });
    fs::write(report.join("figures.json"), all.to_string()).context("cannot write to the report")?;
    line(&format!("checkpoints: {}\nmoves: {}", all["checkpoints"], all["moves"]));
    machine.and(moved).map(drop)
}

/// A server with these variables beside those of the machine's driver.
fn server(places: &Places, further: &[(&'static str, OsString)]) -> Result<Server> {
    let variables = [&programs::driver(places)[..], further].concat();
    Ok(Server::start_with(places, &driver(), &[], &variables)?)
}

fn start<'a>(places: &'a Places, home: &'a Home, server: &Server, arguments: &[&str]) -> Result<Job<'a>> {
    let [shm, _] = Way::through(server);
    let libraries = programs::libraries(places).display().to_string();
    let plan = Plan { arguments, variables: &[("LD_LIBRARY_PATH", &libraries)], ..Plan::default() };
    let mut job = Job::start(places, home, &shm, PROGRAM, &programs::program(places, PROGRAM), &plan)?;
    job.wait_for("step 1:")?;
    Ok(job)
}

/// What a command said in JSON.
fn said(outcome: &Outcome) -> Result<Value> {
    ensure!(outcome.status.success(), "{}\n{}{}", outcome.ending(), outcome.text(), outcome.errors());
    let text = outcome.text();
    serde_json::from_str(text.lines().last().unwrap_or_default()).with_context(|| text.clone())
}

/// Two checkpoints of the running program, a third one that ends it, and a restore that comes to the right end.
fn checkpoints(places: &Places, further: &[(&'static str, OsString)]) -> Result<Value> {
    let (server, home) = (server(places, further)?, Home::new()?);
    let right = program::run(&mut undisturbed(places, &server), LIMIT)?.text();
    let job = start(places, &home, &server, &LARGE)?;
    let (image, mut figures) = (home.image("image"), Vec::new());
    for options in [&["--leave-running"][..], &["--leave-running"], &[]] {
        let taken = said(&job.checkpoint(&image, options)?)?;
        figures.push(
            json!({ "stopped_us": taken["stopped_us"], "took_us": taken["took_us"], "stages_us": taken["stages_us"] }),
        );
    }
    drop(job.finish(LIMIT)?);
    let [shm, _] = Way::through(&server);
    let begun = Instant::now();
    let restored = Job::restore(places, &home, &shm, PROGRAM, &image, &Plan::default())?;
    let outcome = restored.finish(LIMIT)?;
    ensure!(outcome.status.success() && right.ends_with(&outcome.text()), "wrong after a restore: {}", outcome.text());
    Ok(json!({ "checkpoints": figures, "restored_and_ended_ms": begun.elapsed().as_millis() as u64 }))
}

fn undisturbed(places: &Places, server: &Server) -> Command {
    let [shm, _] = Way::through(server);
    let mut command = shm.command(places, &programs::program(places, PROGRAM));
    command.args(BRIEF).env("LD_LIBRARY_PATH", programs::libraries(places));
    command
}

/// From PoCL to the machine's device and back, while the program runs; it has to print what it prints undisturbed.
fn moves(places: &Places, pocl: &Path) -> Result<Value> {
    let drivers: OsString = [pocl.as_os_str(), programs::library(places)?.as_ref()].join(":".as_ref());
    let (server, home) = (server(places, &[(DRIVERS, drivers)])?, Home::new()?);
    let right = program::run(&mut undisturbed(places, &server), LIMIT)?.text();
    let job = start(places, &home, &server, &LARGE)?;
    let mut figures = Vec::new();
    for device in ["gpu", "cpu"] {
        let moved = said(&program::run(&mut job.migrate_command(&server.unix(), &["--device", device]), LIMIT)?)?;
        figures.push(json!({ "to": device, "stopped_us": moved["stopped_us"], "took_us": moved["took_us"] }));
    }
    let checkpoint = said(&job.checkpoint(&home.image("image"), &["--leave-running"])?)?;
    let outcome = job.finish(LIMIT)?;
    ensure!(outcome.status.success() && outcome.text() == right, "wrong after moves: {}", outcome.text());
    Ok(
        json!({ "moves": figures, "pocl_checkpoint": { "stopped_us": checkpoint["stopped_us"], "took_us": checkpoint["took_us"] } }),
    )
}

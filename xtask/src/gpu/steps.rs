//! Parts of `gpu-test` that are lists of steps.
//!
//! A machine with a GPU is available for minutes, and may be taken away. So the most important steps come first, each has its own
//! limit, and its output is written before the next one begins. Steps never run at the same time, since they measure, or take the
//! whole machine.

use std::env;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use katydid_tests::deadline::Limit;
use katydid_tests::paths::{DRIVER_VARIABLE, PACK_VARIABLE, Paths};
use katydid_tests::program::{self, ProgramError};
use serde_json::json;

use crate::gpu::machine;
use crate::output::{self, line};

/// Smallest time left with which a step is begun.
const MIN_STEP_TIME: Duration = Duration::from_secs(10);
/// Variable with the folder for a step that writes its own report.
const OUT_FOLDER_VARIABLE: &str = "OUT";

/// A list of steps, and the time for all of them.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) steps: &'static [Step],
    pub(crate) budget: Duration,
}

/// One step of a plan.
pub(crate) struct Step {
    /// Name of its files in the report.
    pub(crate) name: &'static str,
    /// Program or function that runs it.
    pub(crate) tool: Tool,
    /// Arguments, separated by one space.
    pub(crate) arguments: &'static str,
    /// Limit in seconds, for each time.
    pub(crate) seconds: u64,
    /// Number of times that it runs, until it fails.
    pub(crate) times: u32,
}

impl Step {
    /// Common values of most steps.
    pub(crate) const ONCE: Self = Self { name: "", tool: Tool::Katydid, arguments: "", seconds: 0, times: 1 };
}

/// Program or function that runs a step.
#[derive(Clone, Copy)]
pub(crate) enum Tool {
    /// `katydid`.
    Katydid,
    /// This program, which writes its own report.
    Ourselves,
    /// A binary of tests, by its name.
    Tests(&'static str),
    /// A function of this program with its own limits. Its arguments are the pack and the report.
    Function(fn(&Path, &Path) -> Result<()>),
}

/// Runs the steps of `plan` whose names are in `only`, or all if it is empty, from a pack. Writes a line for each to
/// `steps.jsonl`.
pub(crate) fn run(plan: Plan, folder: &Path, report: &Path, only: &[String]) -> Result<ExitCode> {
    if let Some(unknown) = only.iter().find(|name| plan.steps.iter().all(|step| step.name != **name)) {
        let names: Vec<&str> = plan.steps.iter().map(|step| step.name).collect();
        bail!("there is no step {unknown} among {}", names.join(", "));
    }
    let deadline = Instant::now() + plan.budget;
    fs::write(report.join("machine.json"), machine::describe().to_string()).context("cannot write to the report")?;
    let steps = plan.steps.iter().filter(|step| only.is_empty() || only.iter().any(|name| name == step.name));
    let (mut lines, mut done, mut failed) = (String::new(), 0, 0);
    for step in steps {
        output::step(step.name);
        let start = Instant::now();
        let outcome = (0..step.times).try_for_each(|time| take(folder, report, step, time, deadline));
        let verdict = outcome.as_ref().map_or_else(|reason| format!("{reason:#}"), |()| "ok".to_owned());
        line(&format!("{} ... {verdict} ({:.0} s)", step.name, start.elapsed().as_secs_f64()));
        done += 1;
        failed += u32::from(outcome.is_err());
        lines += &format!("{}\n", json!({ "step": step.name, "good": outcome.is_ok(), "told": verdict }));
        fs::write(report.join("steps.jsonl"), &lines).context("cannot write to the report")?;
    }
    line(&format!("{done} steps, {failed} failed"));
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs a step; `time` is the number of its earlier runs.
fn take(folder: &Path, report: &Path, step: &Step, time: u32, deadline: Instant) -> Result<()> {
    let time_left = deadline.saturating_duration_since(Instant::now());
    if time_left < MIN_STEP_TIME {
        bail!("there was no time left for it");
    }
    let command = match step.tool {
        Tool::Katydid => Command::new(Paths::of_pack(folder).katydid()),
        Tool::Ourselves => ourselves(folder, report, step)?,
        Tool::Tests(name) => tests(folder, name),
        Tool::Function(work) => return work(folder, report),
    };
    start(command, report, step, time, time_left)
}

/// Runs the command of a step. Its output goes to the report as it comes, so that a user who kills it keeps the output so far.
fn start(mut command: Command, report: &Path, step: &Step, time: u32, time_left: Duration) -> Result<()> {
    command.args(step.arguments.split(' ').filter(|word| !word.is_empty()));
    let name = if time == 0 { step.name.to_owned() } else { format!("{}-{}", step.name, time + 1) };
    let is_json = step.arguments.split(' ').any(|word| word == "--json");
    let [out, err] = [if is_json { "json" } else { "out" }, "err"].map(|end| report.join(format!("{name}.{end}")));
    let outcome =
        program::run_into(&mut command, Limit::Budget(Duration::from_secs(step.seconds).min(time_left)), [&out, &err]);
    if matches!(step.tool, Tool::Tests(_)) {
        tell_verdicts(&fs::read_to_string(out).unwrap_or_default());
    }
    match outcome {
        Ok(outcome) if outcome.status.success() => Ok(()),
        Ok(outcome) => bail!("{}", outcome.ending()),
        Err(ProgramError::TooLong { failure, .. }) => bail!("it {failure}"),
        Err(error) => Err(error.into()),
    }
}

/// Returns the command for this program, with a separate folder in the report.
fn ourselves(folder: &Path, report: &Path, step: &Step) -> Result<Command> {
    let own = report.join(step.name);
    fs::create_dir_all(&own).with_context(|| format!("cannot make {}", own.display()))?;
    let mut command = Command::new(folder.join("bin/xtask"));
    command.args(["gpu-test", "--run"]).arg(folder).env(OUT_FOLDER_VARIABLE, own);
    Ok(command)
}

/// Returns the command for a binary of tests in a pack, without its arguments.
pub(crate) fn tests(folder: &Path, name: &str) -> Command {
    let mut command = Command::new(folder.join("tests").join(name));
    command.env(PACK_VARIABLE, folder).env(DRIVER_VARIABLE, driver());
    command
}

/// Returns the CUDA driver of the servers: `auto`, unless the environment names another, as on a machine without a GPU.
pub(crate) fn driver() -> String {
    env::var(DRIVER_VARIABLE).unwrap_or_else(|_| "auto".to_owned())
}

/// Prints the failures in the output of a binary of tests, and its last lines.
fn tell_verdicts(output: &str) {
    output.lines().filter(|line| line.contains("FAILED") || line.starts_with("test result")).for_each(line);
}

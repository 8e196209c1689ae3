//! `gpu-test figures`: every promised figure in one run of eight minutes.
//!
//! A machine with a GPU is had for minutes, and may be taken away: the steps come in the order in which their figures are
//! wanted, each has a limit of its own, and what it measured is written before the next one begins. Steps never run at the
//! same time, since they measure.

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use katydid_tests::places::Places;
use katydid_tests::program::{self, Outcome};
use serde_json::json;

use crate::gpu;
use crate::output::{line, step};

/// All of it; the machine's own limit for a command is ten minutes.
const ALL: Duration = Duration::from_secs(480);
/// With less time than this left, nothing more is begun.
const LEAST: Duration = Duration::from_secs(10);
/// Where the report of a step goes that makes a folder of its own.
const OUT: &str = "OUT";

/// One measurement.
struct Step {
    /// Names its files in the report.
    name: &'static str,
    /// What runs it.
    tool: Tool,
    /// Words, with one space between two.
    arguments: &'static str,
    /// Seconds at most.
    seconds: u64,
}

/// What runs a step.
#[derive(Clone, Copy)]
enum Tool {
    /// `katydid`, which writes JSON to its standard output.
    Katydid,
    /// This program, which writes its own report.
    Ourselves,
}

/// The most wanted figures first. What Katydid is compared with (NVIDIA's own checkpoint of 32 GiB takes half a minute) comes
/// last, and figures of small programs come after those of large ones.
const STEPS: [Step; 7] = [
    Step {
        name: "checkpoint-32g",
        tool: Tool::Katydid,
        arguments: "bench checkpoint --json --tables sizes --sizes 32G --against none --within 80s",
        seconds: 90,
    },
    Step { name: "calls", tool: Tool::Katydid, arguments: "bench --json", seconds: 90 },
    Step {
        name: "training",
        tool: Tool::Ourselves,
        arguments: "frameworks --jobs 1 --within 110 --ways shm,tcp --only \
                    torch.speed_of_launches,torch.speed_of_computing,torch.speed_of_images,torch.queries",
        seconds: 120,
    },
    Step {
        name: "checkpoint-64m",
        tool: Tool::Katydid,
        arguments: "bench checkpoint --json --tables sizes --sizes 64M --against none --within 20s",
        seconds: 30,
    },
    Step {
        name: "checkpoint-32g-again",
        tool: Tool::Katydid,
        arguments: "bench checkpoint --json --tables sizes --sizes 32G --against none --within 50s",
        seconds: 60,
    },
    Step {
        name: "checkpoint-programs",
        tool: Tool::Katydid,
        arguments: "bench checkpoint --json --tables programs --within 40s",
        seconds: 60,
    },
    Step {
        name: "checkpoint-32g-native",
        tool: Tool::Katydid,
        arguments: "bench checkpoint --json --tables sizes --sizes 32G --within 80s",
        seconds: 90,
    },
];

/// Takes the figures out of a pack; what each step came to is a line of `figures.jsonl`.
pub(crate) fn run(folder: &Path, report: &Path) -> Result<ExitCode> {
    let (places, deadline) = (Places::of_pack(folder), Instant::now() + ALL);
    fs::write(report.join("machine.json"), gpu::machine().to_string()).context("cannot write to the report")?;
    let mut lines = String::new();
    let mut missing = 0;
    for one in &STEPS {
        let left = deadline.saturating_duration_since(Instant::now());
        let outcome = match left < LEAST {
            true => Err("there was no time left for it".to_owned()),
            false => take(&places, folder, report, one, left),
        };
        let told = match &outcome {
            Ok(outcome) => format!("{} ({:.0} s)", outcome.ending(), outcome.took.as_secs_f64()),
            Err(reason) => reason.clone(),
        };
        line(&format!("{} ... {told}", one.name));
        let is_good = outcome.is_ok_and(|outcome| outcome.status.success());
        missing += u32::from(!is_good);
        lines += &format!("{}\n", json!({ "step": one.name, "good": is_good, "told": told }));
        fs::write(report.join("figures.jsonl"), &lines).context("cannot write to the report")?;
    }
    line(&format!("{} steps, {missing} without their figures", STEPS.len()));
    Ok(if missing == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs a step and writes what it said; the reason if it did not end in time.
fn take(places: &Places, folder: &Path, report: &Path, one: &Step, left: Duration) -> Result<Outcome, String> {
    step(one.name);
    let mut command = match one.tool {
        Tool::Katydid => Command::new(places.katydid()),
        Tool::Ourselves => {
            let own = report.join(one.name);
            fs::create_dir_all(&own).map_err(|error| error.to_string())?;
            let mut command = Command::new(folder.join("bin/xtask"));
            command.args(["gpu-test", "--run"]).arg(folder).env(OUT, own);
            command
        }
    };
    let limit = Duration::from_secs(one.seconds).min(left);
    let outcome = program::run(command.args(one.arguments.split(' ')), limit).map_err(|error| error.to_string())?;
    let (said, complaints) = (report.join(format!("{}.json", one.name)), report.join(format!("{}.err", one.name)));
    fs::write(said, &outcome.stdout)
        .and_then(|()| fs::write(complaints, &outcome.stderr))
        .map_err(|e| e.to_string())?;
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_comes_first_and_all_fits_in_twice_the_time() {
        assert!(STEPS[0].name == "checkpoint-32g" && STEPS[0].arguments.split(' ').any(|word| word == "32G"));
        // Limits are for what hangs: what works takes half of them.
        assert!(STEPS.iter().map(|step| step.seconds).sum::<u64>() <= 2 * ALL.as_secs());
    }

    #[test]
    fn a_step_of_the_frameworks_names_items_that_there_are() {
        let items = katydid_tests::frameworks::items().unwrap();
        for step in &STEPS {
            let after = step.arguments.split(' ').skip_while(|word| *word != "--only").nth(1);
            for name in after.into_iter().flat_map(|names| names.split(',')) {
                assert!(items.iter().any(|item| item.name == name), "{name}");
            }
        }
    }
}

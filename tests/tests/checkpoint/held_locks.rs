//! A program's thread that a checkpoint holds keeps no lock that a function needs for which the GPU waits.

use std::fs;

use anyhow::{Context, Result, ensure};
use katydid_tests::catalog::Variant;
use katydid_tests::job::Plan;
use katydid_tests::paths::Paths;

use crate::scenarios::Scenario;
use crate::stage::{CHECKPOINT_TIMEOUT, Stage, describe};

/// A host function of this program waits for a file. Meanwhile the program sends the changes in pinned memory before
/// each of its launches.
const PROGRAM: (&str, Variant) = ("fixture", Variant::Static);
/// Two consecutive frames there: one carries the changes, the other is a launch.
const POINTS: [u64; 2] = [100, 101];

/// The trials' names and ways: those on which program and worker do not share pinned memory.
pub(crate) fn trials() -> impl Iterator<Item = (&'static str, Scenario, &'static str)> {
    ["unix", "tcp"]
        .into_iter()
        .map(|way| ("a_function_may_end_whatever_a_thread_does_that_is_held", held_locks as Scenario, way))
}

fn held_locks(paths: &Paths, way: &str) -> Result<()> {
    for point in POINTS {
        let stage = Stage::new(paths, way)?;
        let gate = stage.image("gate");
        let arguments = ["launches", gate.to_str().context("a file without a name")?];
        let plan = Plan { arguments: &arguments, points: &[point], ..Plan::default() };
        let mut job = stage.start_by("held", PROGRAM, &plan)?;
        ensure!(job.holds_itself()?, "the job ended before its point");
        fs::write(&gate, "")?;
        stage.checkpoint(&job, "image", &["--device-only"]).with_context(|| format!("at frame {point}"))?;
        let outcome = job.finish(CHECKPOINT_TIMEOUT)?;
        ensure!(outcome.status.success() && outcome.text() == "200\n", "at frame {point}: {}", describe(&outcome));
        stage.is_clean()?;
    }
    Ok(())
}

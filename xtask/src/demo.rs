//! The first demonstration: a real CUDA program, built by NVIDIA's compiler, runs on a machine without a GPU.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use katydid_tests::catalog::Variant;
use katydid_tests::program;
use katydid_tests::way::Way;

use crate::fetch::setup;
use crate::output::line;
use crate::tree::Tree;
use crate::{apps, demo_checkpoint, dist};

/// Program that is shown.
const DEMO_PROGRAM: &str = "nbody";

/// Time limit, far longer than the program takes.
const DEMO_TIMEOUT: Duration = Duration::from_secs(120);

/// Installs and builds the missing parts, then shows the program.
pub(crate) fn run(tree: &Tree) -> Result<()> {
    // The setup comes before the installation, which includes CRIU.
    setup::run(tree)?;
    dist::run(tree, false)?;
    for program in [DEMO_PROGRAM, demo_checkpoint::CHECKPOINT_DEMO_PROGRAM] {
        apps::build_only(tree, program)?;
    }
    let paths = tree.paths();
    let path = paths.program(DEMO_PROGRAM, Variant::Static);
    line("");
    line(&format!(
        "tests/apps/algorithms/{DEMO_PROGRAM}.cu is an ordinary CUDA program: nvcc built it, it knows nothing of Katydid."
    ));
    line("Its CUDA runtime looks for libcuda.so.1 and finds Katydid's, which carries every call to a worker process.");
    line("There is no GPU here, so the worker uses softcuda, which runs the program's PTX on the CPU.");
    line("");
    line(&format!("$ katydid run --driver soft -- {}", path.display()));
    let outcome = program::run(&mut Way::Private { driver: "soft".to_owned() }.command(&paths, &path), DEMO_TIMEOUT)?;
    line(outcome.text().trim_end());
    if !outcome.status.success() {
        bail!("{DEMO_PROGRAM} did not succeed: {}\n{}", outcome.ending(), outcome.errors());
    }
    line("");
    line(
        "The program compared every body with the host's own computation. The CUDA calls it made, by `katydid trace`:",
    );
    line("");
    trace(&paths.katydid(), &path)?;
    demo_checkpoint::run(tree)?;
    line("");
    line(
        "It worked. `katydid run -- YOUR-PROGRAM` does the same for any CUDA program; where there is a GPU, on the GPU.",
    );
    line(&format!("katydid lies in {}", paths.dist.join("bin").display()));
    Ok(())
}

fn trace(katydid: &std::path::Path, path: &std::path::Path) -> Result<()> {
    let mut command = Command::new(katydid);
    command.args(["trace", "--driver", "soft", "--"]).arg(path);
    let outcome = program::run(&mut command, DEMO_TIMEOUT).context("the trace did not end")?;
    if !outcome.status.success() {
        bail!("katydid trace did not succeed: {}\n{}", outcome.ending(), outcome.errors());
    }
    for row in outcome.errors().lines().take(16) {
        line(row);
    }
    Ok(())
}

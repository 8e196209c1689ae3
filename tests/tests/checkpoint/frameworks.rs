//! Programs of frameworks, on a real GPU whose machine has them: what they print after a restore must be what an
//! undisturbed run prints there, to the last bit.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use katydid_tests::job::{Job, Plan, STOPPED};
use katydid_tests::places::{Places, driver_under_test};
use katydid_tests::program;
use katydid_tests::way::Way;
use libtest_mimic::Trial;

use crate::stage::{LIMIT, Stage, WAYS, continues, said};

/// Steps of the training, and those after which a checkpoint is asked for; it happens a little later.
const STEPS: &str = "150";
const POINTS: [&str; 2] = ["step 40 ", "step 90 "];
const PYTHON: &str = "python3";

/// A test a way; none on softcuda, where PyTorch's kernels, which are machine code, cannot run.
pub(crate) fn trials(places: &Places) -> Vec<Trial> {
    if driver_under_test() == "soft" {
        return Vec::new();
    }
    let has_torch = has_torch();
    if !has_torch {
        println!("no training with PyTorch is tested: {PYTHON} here has none");
    }
    let trial = |way: &'static str| {
        let places = places.clone();
        let training = move || training(&places, way).map_err(|error| format!("{error:#}").into());
        Trial::test(format!("{way}::a_training_with_pytorch_goes_on_with_equal_losses"), training)
            .with_ignored_flag(!has_torch)
    };
    WAYS.map(trial).into()
}

fn has_torch() -> bool {
    let tried = Command::new(PYTHON).args(["-c", "import torch; assert torch.version.cuda"]).output();
    tried.is_ok_and(|tried| tried.status.success())
}

fn training(places: &Places, way: &str) -> Result<()> {
    let script = places.frameworks.join("torch_training.py");
    let arguments = [script.to_str().context("a path that is no text")?, STEPS, "64"];
    let native = Way::Direct { name: "native", folder: None };
    let native = program::run(native.command(places, Path::new(PYTHON)).args(arguments), LIMIT)?;
    ensure!(native.status.success(), "natively: {}", said(&native));
    let stage = Stage::new(places, way)?;
    let plan = Plan { arguments: &arguments, ..Plan::default() };
    let mut job = Job::start(&stage.places, &stage.home, &stage.way, "training", Path::new(PYTHON), &plan)?;
    let mut taken = Vec::new();
    for (index, point) in POINTS.into_iter().enumerate() {
        job.wait_for(point)?;
        let before = job.output_so_far()?.len();
        let is_last = index + 1 == POINTS.len();
        let options: &[&str] = if is_last { &[] } else { &["--leave-running"] };
        let checkpoint = stage.checkpoint(&job, "image", options)?;
        taken.push((checkpoint.number.to_string(), (before, job.output_so_far()?.len())));
    }
    let outcome = job.finish(LIMIT)?;
    ensure!(outcome.status.code() == Some(STOPPED), "a job that was stopped: {}", said(&outcome));
    for (number, written) in taken {
        let outcome = stage.restore("training", "image", &["--at", &number])?.finish(LIMIT)?;
        continues(&native.text(), written, &outcome).with_context(|| format!("checkpoint {number}"))?;
    }
    stage.is_clean()
}

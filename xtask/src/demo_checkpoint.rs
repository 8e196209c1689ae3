//! The second demonstration: a running program is saved, it and its worker are killed, and it goes on from the image.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use katydid_tests::catalog::Variant;
use katydid_tests::job::{Job, Plan, TestFolders};
use katydid_tests::paths::Paths;
use katydid_tests::program::Outcome;
use katydid_tests::server::Server;
use katydid_tests::verdict::expected_path;
use katydid_tests::watch;
use katydid_tests::way::Way;

use crate::output::line;
use crate::tree::Tree;

/// Program that is saved: it prints a line with a checksum for each step of a loop over one state on the GPU.
pub(crate) const CHECKPOINT_DEMO_PROGRAM: &str = "long_loop";
/// Number of steps, and milliseconds between them, so that there is time for the checkpoint.
const PROGRAM_ARGUMENTS: [&str; 2] = ["60", "40"];
/// Step after which the checkpoint is requested, and step after which all processes are killed.
const SAVED_STEP: &str = "step 19 ";
const KILLED_STEP: &str = "step 29 ";
/// Longest time of a step of the demonstration.
const DEMO_STEP_TIMEOUT: Duration = Duration::from_secs(120);

/// Shows a checkpoint and a restore of a running program.
pub(crate) fn run(tree: &Tree) -> Result<()> {
    let paths = tree.paths();
    line("");
    if let Some(why) = watch::why_no_checkpoint(&paths) {
        line(&format!("Programs' processes cannot be saved here, so that part is not shown: {why}"));
        line("`katydid checkpoint --device-only` works all the same.");
        return Ok(());
    }
    line("A program can be saved while it runs, between any two of its calls:");
    let (server, home) = (Server::start(&paths, "soft", &[])?, TestFolders::new()?);
    let way = Way::through(&server)[0].clone();
    let image = home.image("demo.image");
    let first_output = first_life(&paths, &server, &home, &way, &image)?;
    line("");
    line("Its processes and its worker are gone. What is left is the image:");
    line("");
    line("$ katydid restore demo.image");
    let job = Job::restore(&paths, &home, &way, "demo", &image, &Plan::default())?;
    let outcome = job.finish(DEMO_STEP_TIMEOUT)?;
    show_end(&outcome.text());
    judge(&paths, &first_output, &outcome)
}

/// Starts the program, saves it, and kills it with its worker. Returns at least the output that it had printed when it was saved.
fn first_life(paths: &Paths, server: &Server, home: &TestFolders, way: &Way, image: &Path) -> Result<String> {
    line("");
    line(&format!("$ katydid run --name demo -- {CHECKPOINT_DEMO_PROGRAM} {} &", PROGRAM_ARGUMENTS.join(" ")));
    let mut job = Job::start(
        paths,
        home,
        way,
        "demo",
        &paths.program(CHECKPOINT_DEMO_PROGRAM, Variant::Static),
        &Plan { arguments: &PROGRAM_ARGUMENTS, ..Plan::default() },
    )?;
    job.wait_for(SAVED_STEP)?;
    show_end(&job.output_so_far()?);
    line("");
    line("$ katydid checkpoint demo -o demo.image --leave-running");
    let outcome = job.checkpoint(image, &["--leave-running"])?;
    let first_output = job.output_so_far()?;
    if !outcome.status.success() {
        bail!("no checkpoint: {}\n{}{}", outcome.ending(), outcome.text(), outcome.errors());
    }
    line(outcome.text().trim_end());
    line("");
    line("The program goes on meanwhile:");
    job.wait_for(KILLED_STEP)?;
    show_end(&job.output_so_far()?);
    line("");
    line("$ kill -9 PROGRAM WORKER SUPERVISOR");
    job.kill_everything(server)?;
    Ok(first_output)
}

/// Prints the last lines of an output; the lines before are similar.
fn show_end(text: &str) {
    let lines: Vec<&str> = text.lines().collect();
    if lines.len() > 3 {
        line("…");
    }
    lines.iter().skip(lines.len().saturating_sub(3)).for_each(|text| line(text));
}

/// Fails unless the second run prints exactly the missing part.
fn judge(paths: &Paths, first_output: &str, outcome: &Outcome) -> Result<()> {
    let (expected, text) = (fs::read_to_string(expected_path(paths, CHECKPOINT_DEMO_PROGRAM)?)?, outcome.text());
    let goes_on = expected.ends_with(&text) && expected.len() <= first_output.len() + text.len();
    ensure!(
        outcome.status.success() && goes_on,
        "the restored program did not go on where it was: {}\n{text}{}",
        outcome.ending(),
        outcome.errors()
    );
    line("");
    line(&format!(
        "It went on at step {}, and each of its checksums is that of an undisturbed run.",
        expected.lines().count() - text.lines().count()
    ));
    Ok(())
}

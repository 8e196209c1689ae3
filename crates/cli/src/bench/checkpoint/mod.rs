//! `katydid bench checkpoint`: what checkpoints and restores cost, by the commands that users run.
//!
//! Two tables. Small programs that compute (`programs.rs`) are checkpointed in the middle of it, ended and restored, as
//! the Cricket paper does for its Figure 8. And a program that holds so much memory (`sizes.rs`) is checkpointed, changed
//! in part, checkpointed again, ended and restored; beside it, where the driver has it, NVIDIA's own checkpoint of the same
//! program run natively. Every restored program must come to the result that it would have come to anyway.
//!
//! Images go to memory, and are removed as soon as they are not needed any more.

mod computing;
mod holder;
mod memory;
mod native;
mod programs;
mod report;
mod sizes;
mod subject;

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use katydid_scratch::Scratch;

use crate::args::flags::{Against, BenchFlags, BenchHolderFlags};
use crate::bench::wait_until_warm;
use crate::commands::probe::{DriverFacts, Probe, probe_apart};
use crate::layout::Layout;
use crate::output::document;
use crate::output::failure::{Failure, Outcome};
use crate::output::terminal::Progress;
use crate::server::private_server::PrivateServer;
use report::{CheckpointFigures, Measured, Report};
use subject::{Limits, Subject};

/// Where memory is a file system.
const MEMORY: &str = "/dev/shm";
/// Nothing more is begun after so long, unless the flags say otherwise.
const TIME_LIMIT: Duration = Duration::from_secs(15 * 60);

/// The program under checkpoint.
pub(super) fn holder(flags: &BenchHolderFlags) -> Outcome {
    holder::main(flags)
}

/// Runs the command.
pub(super) fn main(flags: &BenchFlags) -> Outcome {
    let layout = Layout::find().map_err(Failure::server)?;
    layout.check_shim().map_err(Failure::server)?;
    let driver = match probe_apart(&flags.driver) {
        Probe::Works(facts) => facts,
        Probe::Fails(reason) => return Err(Failure::server(format!("cannot measure: {reason}"))),
    };
    let place = flags.folder.clone().unwrap_or_else(|| PathBuf::from(MEMORY));
    let limits = Limits::within(flags.within.as_ref().map_or(TIME_LIMIT, |within| within.0))?;
    let progress = Progress::new();
    let server = PrivateServer::start(&flags.driver)?;
    let (layout, place, against) = (&layout, &*place, flags.against);
    let bench = Bench { layout, driver: &driver, server: &server, place, limits, against, progress: &progress };
    // The sizes first: what they need is had for minutes.
    let sizes = if flags.tables.includes_sizes() { sizes::measure(&bench, &flags.sizes) } else { Vec::new() };
    let programs = if flags.tables.includes_programs() { programs::measure(&bench, flags.quick) } else { Vec::new() };
    let report = Report::new(&driver, programs, sizes);
    server.stop();
    drop(progress);
    match flags.json {
        true => document::write(&report)?,
        false => report.write_table(&mut io::stdout().lock())?,
    }
    Ok(ExitCode::SUCCESS)
}

/// What every measurement needs.
struct Bench<'a> {
    layout: &'a Layout,
    driver: &'a DriverFacts,
    server: &'a PrivateServer,
    place: &'a Path,
    limits: Limits,
    against: Against,
    progress: &'a Progress,
}

impl Bench<'_> {
    fn say(&self, what: &str) {
        self.progress.show(what);
    }

    /// A folder for images, in memory.
    fn folder(&self) -> Measured<Scratch> {
        Scratch::below(self.place, "bench").map_err(|error| error.to_string())
    }

    /// Waits for a worker without a program, so that neither programs nor figures meet one that is being started.
    fn warm(&self) -> Measured<()> {
        wait_until_warm(self.server).map_err(|error| error.to_string())
    }

    /// Starts a program under Katydid and waits until it is ready.
    fn run(&self, work: &Path, name: &str, what: &[String]) -> Measured<Subject> {
        self.warm()?;
        let mut command = katydid();
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        command.args(["run", "--name", name, "--server", &self.server.address().to_string(), "--"]).arg(program);
        let subject = Subject::start(command, what, &work.join(name), &self.limits);
        self.warm().and(subject)
    }

    /// A checkpoint by the command; the program goes on after it, or is ended by it.
    fn checkpoint(&self, name: &str, image: &Path, goes_on: bool) -> Measured<CheckpointFigures> {
        let mut command = katydid();
        command.args(["checkpoint", name, "--json", "-o"]).arg(image).args(goes_on.then_some("--leave-running"));
        let marks = memory::ResidentMarks::set();
        let began = Instant::now();
        let output = self.limits.output("a checkpoint", &mut command)?;
        let command_us = native::micros(began.elapsed());
        let growth = goes_on.then(|| marks.growth());
        let told: serde_json::Value = serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())?;
        let number = |key: &str| told[key].as_u64().ok_or_else(|| format!("the report has no {key}"));
        Ok(CheckpointFigures {
            content: number("bytes_content")?,
            added: number("bytes_added")?,
            files: number("bytes_files")?,
            stopped_us: number("stopped_us")?,
            took_us: number("took_us")?,
            command_us,
            stages_us: told["stages_us"].clone(),
            growth,
        })
    }

    /// Brings an ended program back by the command, up to its answer to `order`; a warm worker is there, and the one that
    /// served the program before has given its memory back.
    fn restore(&self, subject: &mut Subject, image: &Path, order: &str) -> Measured<u64> {
        self.limits.wait("the end of a worker", || Ok((self.server.sessions() == 0).then_some(())))?;
        self.warm()?;
        let mut command = katydid();
        command.arg("restore").arg(image).args(["--server", &self.server.address().to_string()]);
        subject.again(command, order).map(native::micros)
    }
}

/// This program, started again.
fn katydid() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.env_remove(crate::server::address::VARIABLE);
    command
}

/// The name of a job of ours.
fn job_name(what: &str) -> String {
    format!("bench-{}-{what}", std::process::id())
}

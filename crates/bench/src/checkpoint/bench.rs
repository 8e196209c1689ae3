//! The steps of every measurement: run, checkpoint and restore programs with the commands that users run.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use katydid_scratch::Scratch;

use super::memory;
use super::native;
use super::report::{CheckpointFigures, Measurement};
use super::subject::{Limits, Subject};
use crate::flags::Against;
use crate::setup::wait_until_warm;
use katydid_cli_core::layout::Layout;
use katydid_cli_core::output::terminal::Progress;
use katydid_cli_core::probe::ProbedDriver;
use katydid_cli_core::server::private_server::PrivateServer;

/// The context of every measurement.
pub(super) struct Bench<'a> {
    pub(super) layout: &'a Layout,
    pub(super) driver: &'a ProbedDriver,
    pub(super) server: &'a PrivateServer,
    pub(super) folder: &'a Path,
    pub(super) limits: Limits,
    pub(super) against: Against,
    pub(super) progress: &'a Progress,
}

impl Bench<'_> {
    pub(super) fn show_progress(&self, what: &str) {
        self.progress.show(what);
    }

    /// Creates a folder for images, in memory.
    pub(super) fn folder(&self) -> Measurement<Scratch> {
        Scratch::below(self.folder, "bench").map_err(|error| error.to_string())
    }

    /// Waits for an idle warm worker, so that the start of a worker disturbs neither programs nor figures.
    pub(super) fn warm(&self) -> Measurement<()> {
        wait_until_warm(self.server).map_err(|error| error.to_string())
    }

    /// Starts a program under Katydid and waits until it is ready.
    pub(super) fn run(&self, work: &Path, name: &str, what: &[String]) -> Measurement<Subject> {
        self.warm()?;
        let mut command = katydid();
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        command.args(["run", "--name", name, "--server", &self.server.address().to_string(), "--"]).arg(program);
        let subject = Subject::start(command, what, &work.join(name), &self.limits);
        self.warm().and(subject)
    }

    /// Takes a checkpoint with the command. The program goes on after it, or ends with it.
    pub(super) fn checkpoint(&self, name: &str, image: &Path, goes_on: bool) -> Measurement<CheckpointFigures> {
        let mut command = katydid();
        command.args(["checkpoint", name, "--json", "-o"]).arg(image).args(goes_on.then_some("--leave-running"));
        let marks = memory::ResidentMarks::set();
        let began = Instant::now();
        let output = self.limits.output("a checkpoint", &mut command)?;
        let command_us = native::micros(began.elapsed());
        let growth = goes_on.then(|| marks.growth());
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())?;
        let number = |key: &str| report[key].as_u64().ok_or_else(|| format!("the report has no {key}"));
        Ok(CheckpointFigures {
            content: number("bytes_content")?,
            added: number("bytes_added")?,
            files: number("bytes_files")?,
            stopped_us: number("stopped_us")?,
            took_us: number("took_us")?,
            command_us,
            stages_us: report["stages_us"].clone(),
            growth,
        })
    }

    /// Restores an ended program with the command, and returns the time until it answers `order`. Waits for a warm worker first,
    /// and until the old worker has freed its memory.
    pub(super) fn restore(&self, subject: &mut Subject, image: &Path, order: &str) -> Measurement<u64> {
        self.limits.wait("the end of a worker", || Ok((self.server.sessions() == 0).then_some(())))?;
        self.warm()?;
        let mut command = katydid();
        command.arg("restore").arg(image).args(["--server", &self.server.address().to_string()]);
        subject.again(command, order).map(native::micros)
    }
}

/// Returns a command that starts this program again.
pub(super) fn katydid() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.env_remove(katydid_cli_core::server::address::SERVER_VARIABLE);
    command
}

/// Returns the name of a job of the bench.
pub(super) fn job_name(what: &str) -> String {
    format!("bench-{}-{what}", std::process::id())
}

//! The basis of a checkpoint test: a server of its own, its folders, and one way to the server. Also checks outputs of a
//! program that was cut in two.

use anyhow::{Context, Result, bail, ensure};
use katydid_tests::catalog::{App, Variant};
use katydid_tests::job::{Job, Plan, TestFolders, holds_itself};
use katydid_tests::opencl;
use katydid_tests::paths::{Paths, driver_under_test};
use katydid_tests::program::Outcome;
use katydid_tests::server::Server;
use katydid_tests::verdict::expected_path;
use katydid_tests::watch::until;
use katydid_tests::way::Way;
use serde_json::Value;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Far more than any program needs, even on a busy machine.
pub(crate) const CHECKPOINT_TIMEOUT: Duration = Duration::from_secs(180);

/// The names of the ways.
pub(crate) const WAY_NAMES: [&str; 3] = ["shm", "unix", "tcp"];

/// The server, way and folders of one test.
pub(crate) struct Stage {
    pub(crate) paths: Paths,
    pub(crate) home: TestFolders,
    pub(crate) server: Server,
    pub(crate) way: Way,
}

impl Stage {
    pub(crate) fn new(paths: &Paths, way: &str) -> Result<Self> {
        let driver = driver_under_test();
        let server =
            if way == "tls" { Server::start_tls(paths, &driver, &[]) } else { Server::start(paths, &driver, &[]) };
        Self::with(paths, way, server?)
    }

    /// Returns a stage with a server of another driver, whose workers get these variables.
    pub(crate) fn of_driver(
        paths: &Paths,
        way: &str,
        driver: &str,
        variables: &[(&'static str, OsString)],
    ) -> Result<Self> {
        Self::with(paths, way, Server::start_with(paths, driver, &[], variables)?)
    }

    /// Returns a stage with a server of the driver under test, started with further options and variables.
    pub(crate) fn with_flags(
        paths: &Paths,
        way: &str,
        flags: &[&str],
        variables: &[(&'static str, OsString)],
    ) -> Result<Self> {
        Self::with(paths, way, Server::start_with(paths, &driver_under_test(), flags, variables)?)
    }

    /// Returns a stage with a server that also serves OpenCL programs, whose driver gets these variables as well.
    pub(crate) fn with_opencl(paths: &Paths, way: &str, further: &[(&'static str, &str)]) -> Result<Self> {
        let paths = &opencl::paths(paths);
        Self::with(paths, way, opencl_server(paths, further)?)
    }

    fn with(paths: &Paths, way: &str, server: Server) -> Result<Self> {
        let way = way_to(way, &server)?;
        Ok(Self { paths: paths.clone(), home: TestFolders::new()?, server, way })
    }

    /// Starts an OpenCL program as the job `name`.
    pub(crate) fn start_opencl(&self, name: &str, program: &str, plan: &Plan<'_>) -> Result<Job<'_>> {
        self.start_opencl_at(name, &opencl::program(&self.paths, program), plan)
    }

    /// Starts the OpenCL program at `path` as the job `name`.
    pub(crate) fn start_opencl_at(&self, name: &str, path: &Path, plan: &Plan<'_>) -> Result<Job<'_>> {
        let libraries = opencl::libraries(&self.paths).display().to_string();
        let variables = [&[("LD_LIBRARY_PATH", libraries.as_str())], plan.variables].concat();
        let plan = Plan { variables: &variables, ..*plan };
        Ok(Job::start(&self.paths, &self.home, &self.way, name, path, &plan)?)
    }

    /// Returns what an OpenCL program prints in an undisturbed run: the kept text, or with another driver than PoCL the output
    /// of a run without checkpoints.
    pub(crate) fn expected_of_opencl(&self, program: &str) -> Result<String> {
        if opencl::is_pocl(&self.paths) {
            return expected_of(&self.paths, program);
        }
        let outcome = self.start_opencl("undisturbed", program, &Plan::default())?.finish(CHECKPOINT_TIMEOUT)?;
        ensure!(outcome.status.success(), "undisturbed: {}", describe(&outcome));
        Ok(outcome.text())
    }

    /// Starts a program as the job `name`; it holds itself at `points`.
    pub(crate) fn start(
        &self,
        name: &str,
        program: (&str, Variant),
        arguments: &[&str],
        points: &[u64],
    ) -> Result<Job<'_>> {
        self.start_by(name, program, &Plan { arguments, points, ..Plan::default() })
    }

    pub(crate) fn start_by(&self, name: &str, program: (&str, Variant), plan: &Plan<'_>) -> Result<Job<'_>> {
        let path = self.paths.program(program.0, program.1);
        Ok(Job::start(&self.paths, &self.home, &self.way, name, &path, plan)?)
    }

    /// Starts an MPI launcher each of whose ranks starts with `katydid run --name NAME`.
    pub(crate) fn start_ranks(&self, name: &str, launcher: &Path, plan: &Plan<'_>) -> Result<Job<'_>> {
        let path = Job::ranks_begin(&self.paths, &self.way, &["--name", name], launcher, &self.home.image(""))?;
        Ok(Job::start_launcher(&self.paths, &self.home, name, &path, plan)?)
    }

    /// Restores the job `name`, which then runs to its end.
    pub(crate) fn restore(&self, name: &str, image: &str, options: &[&str]) -> Result<Job<'_>> {
        self.restore_by(name, image, &Plan { arguments: options, ..Plan::default() })
    }

    pub(crate) fn restore_by(&self, name: &str, image: &str, plan: &Plan<'_>) -> Result<Job<'_>> {
        self.restore_from(name, &self.image(image), plan)
    }

    /// Restores the job `name` from an image at any path.
    pub(crate) fn restore_from(&self, name: &str, image: &Path, plan: &Plan<'_>) -> Result<Job<'_>> {
        Ok(Job::restore(&self.paths, &self.home, &self.way, name, image, plan)?)
    }

    pub(crate) fn image(&self, name: &str) -> PathBuf {
        self.home.image(name)
    }

    /// Takes a checkpoint, which must succeed, and returns its report.
    pub(crate) fn checkpoint(&self, job: &Job<'_>, image: &str, options: &[&str]) -> Result<Checkpoint> {
        let outcome = job.checkpoint(&self.image(image), options)?;
        let job = job.errors_so_far()?;
        ensure!(outcome.status.success(), "the checkpoint failed: {}--- the job\n{job}", describe(&outcome));
        Checkpoint::read(&outcome)
    }

    /// Checks that nothing is left behind: no session, no worker, no folder of a job.
    pub(crate) fn is_clean(&self) -> Result<()> {
        self.server.workers_of(0)?;
        until("all folders of jobs are gone", || self.home.jobs().is_empty())
            .with_context(|| format!("there are {:?}", self.home.jobs()))
    }
}

/// Waits until a job has two programs, and both hold themselves at a point.
pub(crate) fn two_hold_themselves(job: &Job<'_>) -> Result<()> {
    Ok(until("both programs hold themselves", || {
        let view = job.view().unwrap_or_default();
        let is_busy = !view["checkpoint"].is_null();
        !is_busy && view["members"].as_array().is_some_and(|all| all.len() == 2 && all.iter().all(holds_itself))
    })?)
}

/// Returns the way of that name to a server.
pub(crate) fn way_to(name: &str, server: &Server) -> Result<Way> {
    let [shm, tcp] = Way::through(server);
    Ok(match name {
        "shm" => shm,
        "tcp" => tcp,
        "unix" => Way::as_stream(server),
        "tls" => Way::tls(server).context("the server is not behind TLS")?,
        other => bail!("no such way: {other}"),
    })
}

/// Starts a server for OpenCL programs.
pub(crate) fn opencl_server(paths: &Paths, further: &[(&'static str, &str)]) -> Result<Server> {
    let further = further.iter().map(|(name, value)| (*name, value.into()));
    let variables: Vec<_> = opencl::driver(paths).into_iter().chain(further).collect();
    Ok(Server::start_with(paths, &driver_under_test(), &[], &variables)?)
}

/// The report of `katydid checkpoint --json`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Checkpoint {
    pub(crate) number: u64,
    /// Bytes of chunks that this checkpoint added to the image.
    pub(crate) added: u64,
    /// Bytes of CRIU's files: the program's part.
    pub(crate) files: u64,
}

impl Checkpoint {
    pub(crate) fn read(outcome: &Outcome) -> Result<Self> {
        let text = outcome.text();
        let report: Value = serde_json::from_str(&text).unwrap_or_default();
        let number = |name: &str| report[name].as_u64().with_context(|| format!("no {name} in {text}"));
        let (number, added, files) = (number("checkpoint")?, number("bytes_added")?, number("bytes_files")?);
        Ok(Self { number, added, files })
    }
}

/// Describes an outcome with all of its output, for messages.
pub(crate) fn describe(outcome: &Outcome) -> String {
    format!("{}\n--- stdout\n{}--- stderr\n{}", outcome.ending(), outcome.text(), outcome.errors())
}

/// Returns what the program prints in an undisturbed run.
pub(crate) fn undisturbed_output(paths: &Paths, app: &App) -> Result<String> {
    expected_of(paths, &app.name)
}

/// Returns what the program of this name prints in an undisturbed run.
pub(crate) fn expected_of(paths: &Paths, name: &str) -> Result<String> {
    let path = expected_path(paths, name)?;
    std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
}

/// Checks that a restored program ended well, and printed exactly what an undisturbed one prints after the checkpoint. At the
/// checkpoint, between `written.0` and `written.1` bytes were out.
pub(crate) fn continues(expected: &str, written: (usize, usize), restored: &Outcome) -> Result<()> {
    ensure!(restored.status.success(), "the restored program: {}", describe(restored));
    let text = restored.text();
    let at = expected.len().checked_sub(text.len());
    let fits = expected.ends_with(&text) && at.is_some_and(|at| (written.0..=written.1).contains(&at));
    ensure!(
        fits,
        "the restored program did not go on where the checkpoint was, {} to {} of {} bytes:\n{}",
        written.0,
        written.1,
        expected.len(),
        describe(restored)
    );
    Ok(())
}

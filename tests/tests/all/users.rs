//! Two users of one machine see of each other what docs/how-to/serve-several-users.md says.
//!
//! The users are ids that belong to no account. Only root can become another user, so other users skip these tests.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use katydid_tests::catalog::Variant;
use katydid_tests::commands::katydid;
use katydid_tests::paths::{Paths, driver_under_test};
use katydid_tests::program::{self, Outcome, Running};
use katydid_tests::server::Server;
use katydid_tests::watch::{WAIT_TIMEOUT, until};
use serde_json::Value;
use tempfile::TempDir;

const ALICE: u32 = 65533;
const BOB: u32 = 65534;
/// Serializes the tests: `ps` of a user also shows the jobs of other tests that run as that user.
static TEST_LOCK: Mutex<()> = Mutex::new(());
/// More steps than a test waits for, and the milliseconds of each step.
const LONG_ARGUMENTS: [&str; 2] = ["100000", "10"];

/// A user with a home and a runtime folder of its own.
struct User {
    paths: Paths,
    id: u32,
    home: TempDir,
}

impl User {
    fn new(paths: &Paths, id: u32) -> Result<Self> {
        let home = tempfile::Builder::new().prefix("katydid-user-").tempdir()?;
        let user = Self { paths: paths.clone(), id, home };
        fs::create_dir(user.run_folder())?;
        user.own(user.home.path())?;
        user.own(&user.run_folder())?;
        Ok(user)
    }

    fn own(&self, path: &Path) -> Result<()> {
        chown(path, Some(self.id), Some(self.id)).with_context(|| path.display().to_string())
    }

    fn run_folder(&self) -> PathBuf {
        self.home.path().join("run")
    }

    /// Returns the default address of `katydid serve` for this user.
    fn socket(&self) -> String {
        format!("unix:{}", self.run_folder().join("katydid.sock").display())
    }

    fn admin_socket(&self) -> PathBuf {
        self.run_folder().join("katydid.sock.admin")
    }

    /// Returns the command `katydid` as this user, without any capability.
    fn command(&self, arguments: &[&str]) -> Command {
        let inner = katydid(&self.paths, arguments);
        let mut command = Command::new("setpriv");
        let id = self.id.to_string();
        command.args(["--reuid", &id, "--regid", &id, "--clear-groups", "--inh-caps=-all"]);
        command.arg(inner.get_program()).args(inner.get_args());
        for (name, value) in inner.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.env("HOME", self.home.path()).env("XDG_RUNTIME_DIR", self.run_folder());
        command.env("KATYDID_CACHE", self.home.path().join("cache")).env_remove("XDG_CACHE_HOME");
        command
    }

    /// Starts a server as the page does, and waits for its socket.
    fn serve(&self) -> Result<Running> {
        let server = Running::start(&mut self.command(&["serve", "--driver", &driver_under_test()]), Stdio::null())?;
        until("a server listens", || self.admin_socket().exists())?;
        Ok(server)
    }

    fn start(&self, server: &str, name: &str, program: &str, arguments: &[&str]) -> Result<Running> {
        let program = self.paths.program(program, Variant::Static).display().to_string();
        let options = ["run", "--server", server, "--name", name, "--", &program];
        Ok(Running::start(&mut self.command(&[&options, arguments].concat()), Stdio::null())?)
    }

    fn run(&self, arguments: &[&str]) -> Result<Outcome> {
        Ok(program::run(&mut self.command(arguments), WAIT_TIMEOUT)?)
    }

    /// Returns the names of the sessions, and of the jobs, that `katydid ps` shows to this user.
    fn sees(&self) -> Result<(Vec<String>, Vec<String>)> {
        let outcome = self.run(&["ps", "--json"])?;
        ensure!(outcome.status.success(), "{}", outcome.errors());
        let view: Value = serde_json::from_str(&outcome.text())?;
        let names = |list: &str| {
            let items = view[list].as_array().into_iter().flatten();
            items.map(|item| item["name"].as_str().unwrap_or_default().to_owned()).collect()
        };
        Ok((names("sessions"), names("jobs")))
    }
}

/// Returns the two users, or `None` where this process cannot become them.
fn users() -> Result<Option<(User, User)>> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let paths = Paths::of_this_test()?;
    Ok(Some((User::new(&paths, ALICE)?, User::new(&paths, BOB)?)))
}

fn is_refused(outcome: &Outcome) -> Result<()> {
    let (status, errors) = (outcome.status.code(), outcome.errors());
    ensure!(status == Some(3) && errors.contains("Permission denied"), "status {status:?}: {errors}");
    ensure!(!errors.contains("--listen"), "the server is there, and need not be started: {errors}");
    Ok(())
}

/// A folder without mounts of its own stands in for a machine or container that keeps this user from `/dev/null`.
#[test]
fn a_program_of_a_user_without_dev_null_keeps_its_status() -> Result<()> {
    let _guard = TEST_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let paths = Paths::of_this_test()?;
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let user = User::new(&paths, BOB)?;
    let hidden = user.home.path().join("hidden");
    fs::write(&hidden, "")?;
    fs::set_permissions(&hidden, fs::Permissions::from_mode(0o600))?;
    let run = |line: &[&str]| -> Result<Outcome> {
        let inner = user.command(&[&["run", "--driver", "soft", "--"], line].concat());
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", "mount --bind \"$0\" /dev/null && exec \"$@\""]).arg(&hidden);
        command.arg(inner.get_program()).args(inner.get_args());
        for (name, value) in inner.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        Ok(program::run(&mut command, WAIT_TIMEOUT)?)
    };
    let outcome = run(&["sh", "-c", "exit 7"])?;
    ensure!(outcome.status.code() == Some(7), "{}: {}", outcome.ending(), outcome.errors());
    // The error names what keeps a worker from starting.
    let outcome = run(&[&paths.program("vector_add", Variant::Static).display().to_string()])?;
    let is_named = outcome.errors().contains(" /dev/null: Permission denied");
    ensure!(!outcome.status.success() && is_named, "{}: {}", outcome.ending(), outcome.errors());
    Ok(())
}

#[test]
fn users_with_a_server_each_neither_see_nor_reach_each_other() -> Result<()> {
    let _guard = TEST_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let Some((alice, bob)) = users()? else { return Ok(()) };
    let (mut of_alice, mut of_bob) = (alice.serve()?, bob.serve()?);
    let mut job = alice.start(&alice.socket(), "alice", "long_loop", &LONG_ARGUMENTS)?;
    job.wait_for("step 1 ", WAIT_TIMEOUT)?;

    let (sessions, jobs) = alice.sees()?;
    ensure!(sessions == ["alice"] && jobs.len() == 1, "Alice sees {sessions:?} and {jobs:?}");
    let seen = bob.sees()?;
    ensure!(seen == (Vec::new(), Vec::new()), "Bob sees {seen:?}");

    // Her sockets are closed to him, also where her folders let him pass.
    for mode in [0o700, 0o711] {
        fs::set_permissions(alice.home.path(), PermissionsExt::from_mode(mode))?;
        fs::set_permissions(alice.run_folder(), PermissionsExt::from_mode(mode))?;
        let there = alice.socket();
        is_refused(&bob.start(&there, "bob", "vector_add", &[])?.finish(WAIT_TIMEOUT)?)?;
        is_refused(&bob.run(&["ps", "--admin", &alice.admin_socket().display().to_string()])?)?;
    }
    let outcome = bob.start(&bob.socket(), "bob", "vector_add", &[])?.finish(WAIT_TIMEOUT)?;
    ensure!(outcome.status.success(), "{}", outcome.errors());
    ensure!(!job.has_ended()? && !of_alice.has_ended()? && !of_bob.has_ended()?, "a server or a job has ended");
    Ok(())
}

#[test]
fn users_of_one_tls_server_see_no_sessions_of_each_other() -> Result<()> {
    let _guard = TEST_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let Some((alice, bob)) = users()? else { return Ok(()) };
    let server = Server::start_tls(&alice.paths, &driver_under_test(), &[])?;
    let (address, certs) = server.tls().and_then(|tls| tls.split_once("?certs=")).context("no TLS")?;
    let mut jobs = Vec::new();
    for (user, name) in [(&alice, "alice"), (&bob, "bob")] {
        let folder = user.home.path().join("certs");
        fs::create_dir(&folder)?;
        for file in fs::read_dir(certs)? {
            let file = file?;
            let copy = folder.join(file.file_name());
            fs::copy(file.path(), &copy)?;
            user.own(&copy)?;
        }
        user.own(&folder)?;
        let mut job =
            user.start(&format!("{address}?certs={}", folder.display()), name, "long_loop", &LONG_ARGUMENTS)?;
        job.wait_for("step 1 ", WAIT_TIMEOUT)?;
        jobs.push(job);
    }
    ensure!(server.sessions()?.len() == 2, "{:?}", server.sessions()?);
    for user in [&alice, &bob] {
        let (sessions, jobs) = user.sees()?;
        ensure!(sessions.is_empty() && jobs.len() == 1, "{} sees {sessions:?} and {jobs:?}", user.id);
        is_refused(&user.run(&["ps", "--admin", &server.admin_socket().display().to_string()])?)?;
    }
    Ok(())
}

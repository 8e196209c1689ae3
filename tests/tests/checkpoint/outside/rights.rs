//! Checkpoints and restores by an ordinary user, with capabilities that are passed on to what it starts, or with those of the
//! launcher of Katydid's own CRIU. Without any, the refusal names them. Root asks for such a user's checkpoint.
//!
//! The tests run as root, which gives up its rights; other users skip them.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::process::Command;

use anyhow::{Result, ensure};
use katydid_tests::commands::katydid;
use katydid_tests::job::{Job, Plan, TestFolders};
use katydid_tests::paths::{Paths, driver_under_test};
use katydid_tests::program::{self, Outcome};
use katydid_tests::trial;
use katydid_tests::watch::{WAIT_TIMEOUT, until};
use katydid_tests::way::Way;
use libtest_mimic::{Completion, Trial};
use rustix::fs::{XattrFlags, setxattr};
use serde_json::Value;

use crate::images::upgrades::Installation;
use crate::scenarios::{LOOP, expected_of_loop, was_stopped};
use crate::stage::{CHECKPOINT_TIMEOUT, continues, describe};

/// An id that belongs to no user.
const USER: u32 = 65534;
/// `cap_checkpoint_restore,cap_sys_ptrace,cap_setpcap=ep` as the attribute of a file: revision 2 with the effective bit,
/// then permitted and inheritable capabilities, the lower words first.
const OF_A_FILE: [u32; 5] = [0x0200_0001, 1 << 8 | 1 << 19, 0, 1 << 8, 0];

/// The source of the user's capabilities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CapabilitySource {
    Ambient,
    Launcher,
    Nowhere,
}

pub(crate) fn trials(paths: &Paths) -> Vec<Trial> {
    let all = [
        ("an_ordinary_user_with_ambient_capabilities_takes_checkpoints", CapabilitySource::Ambient),
        ("an_ordinary_user_takes_checkpoints_through_the_launcher_of_criu", CapabilitySource::Launcher),
        ("an_ordinary_user_without_capabilities_is_told_which_it_lacks", CapabilitySource::Nowhere),
    ];
    let trial = |(name, from)| {
        let paths = paths.clone();
        trial::ignorable_test(format!("private::{name}"), move || {
            run_one(&paths, from).map_err(|error| format!("{error:#}").into())
        })
    };
    all.map(trial).into()
}

fn run_one(paths: &Paths, from: CapabilitySource) -> Result<Completion> {
    if !rustix::process::geteuid().is_root() {
        return Ok(Completion::ignored_with("only root can be another user"));
    }
    let installation = Installation::new(paths)?;
    let launcher = installation.paths.dist.join("lib/katydid/katydid-criu");
    if from == CapabilitySource::Launcher {
        let attribute: Vec<u8> = OF_A_FILE.iter().flat_map(|word| word.to_le_bytes()).collect();
        installation.change(&launcher, |_| Ok(()))?;
        if let Err(error) = setxattr(&launcher, "security.capability", &attribute, XattrFlags::empty()) {
            return Ok(Completion::ignored_with(format!("no file here takes capabilities: {error}")));
        }
    }
    let user = User { paths: installation.paths.clone(), home: TestFolders::new()?, from };
    chown(user.home.image(""), Some(USER), Some(USER))?;
    chown(user.home.image("run"), Some(USER), Some(USER))?;
    let doctor = user.doctor()?;
    let criu = doctor["detail"].to_string();
    match from {
        CapabilitySource::Nowhere => {
            ensure!(doctor["status"] != "ok" && criu.contains("CAP_CHECKPOINT_RESTORE"), "doctor: {doctor}");
            ensure!(doctor["remedy"].to_string().contains("setcap cap_checkpoint_restore"), "doctor: {doctor}");
            user.is_refused()?;
        }
        _ if doctor["status"] != "ok" => {
            // A kernel or container in which no ordinary user may do so: CRIU's own check names what is missing.
            ensure!(!criu.contains("lacks"), "doctor: {doctor}");
            return Ok(Completion::ignored_with(format!("no CRIU for an ordinary user: {criu}")));
        }
        _ => user.checkpoints()?,
    }
    installation.remove()?;
    Ok(Completion::Completed)
}

/// An ordinary user with a home of its own.
struct User {
    paths: Paths,
    home: TestFolders,
    from: CapabilitySource,
}

impl User {
    /// Returns the start of a command that this user runs.
    fn through(&self) -> Vec<&'static str> {
        let become_it = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"];
        let rights = match self.from {
            CapabilitySource::Ambient => &[
                "--inh-caps=+checkpoint_restore,+sys_ptrace,+setpcap",
                "--ambient-caps=+checkpoint_restore,+sys_ptrace,+setpcap",
            ][..],
            CapabilitySource::Launcher | CapabilitySource::Nowhere => &["--inh-caps=-all"],
        };
        become_it.iter().chain(rights).copied().collect()
    }

    /// Runs a command as this user, with the command's variables.
    fn run(&self, command: &Command) -> Result<Outcome> {
        let through = self.through();
        let mut outer = Command::new(through[0]);
        outer.args(&through[1..]).arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => outer.env(name, value),
                None => outer.env_remove(name),
            };
        }
        Ok(program::run(outer.env("KATYDID_CACHE", self.home.image("cache")), WAIT_TIMEOUT)?)
    }

    fn doctor(&self) -> Result<Value> {
        let mut command = katydid(&self.paths, &["doctor", "--json"]);
        command.env("XDG_RUNTIME_DIR", self.home.image("run"));
        let findings: Value = serde_json::from_str(&self.run(&command)?.text())?;
        let found = findings.as_array().into_iter().flatten().find(|finding| finding["check"] == "checkpoints");
        Ok(found.cloned().unwrap_or_default())
    }

    fn way() -> Way {
        Way::Private { driver: driver_under_test() }
    }

    /// Takes two checkpoints and restores the second, which root asks for and which ends the job.
    fn checkpoints(&self) -> Result<()> {
        let (through, cache) = (self.through(), self.home.image("cache").display().to_string());
        let variables = [("KATYDID_CACHE", cache.as_str())];
        let plan = Plan { points: &[30, 60], through: &through, variables: &variables, ..Plan::default() };
        let path = self.paths.program(LOOP.0, LOOP.1);
        let mut job = Job::start(&self.paths, &self.home, &Self::way(), "ordinary", &path, &plan)?;
        let of_root = TestFolders::new()?;
        for by_root in [false, true] {
            ensure!(job.holds_itself()?, "the job ended before its point: {}", job.errors_so_far()?);
            let options = if by_root { &[][..] } else { &["--leave-running"] };
            let mut asks = job.checkpoint_command(&self.home.image("image"), options);
            let outcome = if by_root {
                // The command looks for the job where the user's processes have their folders.
                program::run(asks.env("XDG_RUNTIME_DIR", of_root.image("run")), WAIT_TIMEOUT)?
            } else {
                self.run(&asks)?
            };
            ensure!(outcome.status.success(), "{}--- the job\n{}", describe(&outcome), job.errors_so_far()?);
        }
        let written = job.output_so_far()?.len();
        was_stopped(job)?;
        let owner = fs::metadata(self.home.image("image"))?.uid();
        ensure!(owner == USER, "the image belongs to {owner}");
        let plan = Plan { points: &[], ..plan };
        let image = self.home.image("image");
        let restored = Job::restore(&self.paths, &self.home, &Self::way(), "ordinary", &image, &plan)?;
        continues(&expected_of_loop(&self.paths)?, (written, written), &restored.finish(CHECKPOINT_TIMEOUT)?)?;
        Ok(until("the job's folder is gone", || self.home.jobs().is_empty())?)
    }

    /// Checks that a checkpoint is refused and that the program goes on.
    fn is_refused(&self) -> Result<()> {
        let (through, cache) = (self.through(), self.home.image("cache").display().to_string());
        let variables = [("KATYDID_CACHE", cache.as_str())];
        let plan = Plan { points: &[30], through: &through, variables: &variables, ..Plan::default() };
        let path = self.paths.program(LOOP.0, LOOP.1);
        let mut job = Job::start(&self.paths, &self.home, &Self::way(), "ordinary", &path, &plan)?;
        ensure!(job.holds_itself()?, "the job ended before its point: {}", job.errors_so_far()?);
        let outcome = self.run(&job.checkpoint_command(&self.home.image("image"), &[]))?;
        let errors = outcome.errors();
        ensure!(!outcome.status.success() && errors.contains("CAP_CHECKPOINT_RESTORE"), "{}", describe(&outcome));
        // The refused checkpoint counts as the one that the program waited for.
        let outcome = job.finish(CHECKPOINT_TIMEOUT)?;
        ensure!(outcome.status.success() && outcome.text() == expected_of_loop(&self.paths)?, "{}", describe(&outcome));
        Ok(())
    }
}

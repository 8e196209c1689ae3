//! A restore on another host, as far as one machine can act as two: only the files are the same.
//!
//! Mounts, the host name, the network and process ids are those of new namespaces. `/dev/shm`, `/run` and the job's folder do
//! not exist there. The image is a copy in another place, and the first one is gone. The server was started there.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use katydid_tests::catalog::Variant;
use katydid_tests::job::{Job, Plan};
use katydid_tests::paths::{Paths, driver_under_test};
use katydid_tests::program;
use katydid_tests::watch::WAIT_TIMEOUT;
use katydid_tests::way::Way;
use libtest_mimic::{Completion, Trial};

use crate::scenarios::{LOOP, was_stopped};
use crate::stage::{CHECKPOINT_TIMEOUT, Stage, WAY_NAMES, continues, describe, expected_of};

/// Restored programs: one with one process, one with several, and one that opens things by names.
const PROGRAMS: [(&str, Variant); 3] = [LOOP, ("kept_processes", Variant::Static), ("kept_names", Variant::Static)];
/// A frame that each of them reaches.
const POINT: u64 = 30;
/// The command that starts the command of a restore.
const NEW: [&str; 9] = ["unshare", "--mount", "--uts", "--net", "--pid", "--fork", "--mount-proc", "sh", "-c"];
/// A script that sets up the host in new namespaces, then starts a server of its own.
const PREPARE: &str = "
set -e
echo elsewhere > /proc/sys/kernel/hostname
python3 -c '
import fcntl, socket, struct
SIOCSIFFLAGS, IFF_UP = 0x8914, 1
fcntl.ioctl(socket.socket(), SIOCSIFFLAGS, struct.pack(\"16sh22x\", b\"lo\", IFF_UP))'
for folder in /dev/shm /run $HIDDEN; do mount -t tmpfs none $folder; done
mkdir /run/own
export XDG_RUNTIME_DIR=/run/own
";
/// The end of a script that only tries whether this machine allows such a host.
const TRY: &str = "exit 0";
/// The end of a script that restores with that server. All that is left ends with this shell, which is process 1 there.
const RESTORE: &str = "
\"$1\" serve --driver \"$DRIVER\" --admin /run/admin --listen unix:/run/server --listen tcp://127.0.0.1:7070 &
until \"$1\" ps --admin /run/admin > /dev/null 2>&1; do kill -0 $!; sleep 0.05; done
\"$@\"
";
/// Addresses at which that server listens.
const ADDRESSES: [(&str, &str); 2] = [("tcp", "tcp://127.0.0.1:7070"), ("unix", "unix:/run/server")];

/// The trials, for each of the ways.
pub(crate) fn trials(paths: &Paths) -> Vec<Trial> {
    let every = WAY_NAMES.iter().flat_map(|way| PROGRAMS.map(|program| (*way, program)));
    let trial = |(way, program): (&'static str, (&'static str, Variant))| {
        let paths = paths.clone();
        Trial::ignorable_test(format!("{way}::{}_is_restored_on_another_host", program.0), move || {
            Ok(run_one(&paths, way, program)?)
        })
    };
    every.map(trial).collect()
}

fn run_one(paths: &Paths, way: &str, program: (&str, Variant)) -> Result<Completion> {
    let hidden = hidden(paths);
    if let Some(why) = why_not(&hidden)? {
        return Ok(Completion::ignored_with(why));
    }
    let (stage, expected) = (Stage::new(paths, way)?, expected_of(paths, program.0)?);
    let mut job = stage.start("guest", program, &[], &[POINT])?;
    ensure!(job.holds_itself()?, "the job ended before its point");
    let before = job.output_so_far()?.len();
    stage.checkpoint(&job, "image", &[])?;
    let written = (before, job.output_so_far()?.len());
    was_stopped(job)?;
    let there = tempfile::Builder::new().prefix("katydid-elsewhere-").tempdir_in("/var/tmp")?;
    let image = there.path().join("image");
    copy(&stage.image("image"), &image)?;
    fs::remove_dir_all(stage.image("image")).context("cannot remove the first image")?;
    let address = ADDRESSES.iter().find(|(name, _)| *name == way).unwrap_or(&ADDRESSES[1]).1;
    let server = Way::Served { name: "elsewhere", address: address.to_owned(), as_stream: way == "unix" };
    let script = format!("{PREPARE}{RESTORE}");
    let through = [&NEW[..], &[&script, "sh"]].concat();
    let driver = driver_under_test();
    let variables = [("HIDDEN", hidden.as_str()), ("DRIVER", &driver)];
    let plan = Plan { through: &through, variables: &variables, ..Plan::default() };
    let outcome = Job::restore(paths, &stage.home, &server, "guest", &image, &plan)?.finish(CHECKPOINT_TIMEOUT)?;
    continues(&expected, written, &outcome)?;
    stage.is_clean()?;
    Ok(Completion::Completed)
}

/// Returns folders that do not exist on the other host: the one for temporary files, unless the tested files lie in it.
fn hidden(paths: &Paths) -> String {
    let needed = [&paths.dist, &paths.apps, &paths.frameworks];
    let is_needed = needed.iter().any(|path| path.starts_with("/tmp"));
    if is_needed { String::new() } else { "/tmp".to_owned() }
}

/// Returns why this machine cannot act as another host.
fn why_not(hidden: &str) -> Result<Option<String>> {
    let script = format!("{PREPARE}{TRY}");
    let mut command = Command::new(NEW[0]);
    command.args(&NEW[1..]).arg(&script).env("HIDDEN", hidden);
    let outcome = match program::run(&mut command, WAIT_TIMEOUT) {
        Ok(outcome) => outcome,
        Err(error) => return Ok(Some(error.to_string())),
    };
    Ok((!outcome.status.success()).then(|| format!("no namespaces like another host: {}", outcome.errors().trim())))
}

/// Copies a folder with all attributes.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let outcome = program::run(Command::new("cp").arg("--archive").arg(from).arg(to), WAIT_TIMEOUT)?;
    ensure!(outcome.status.success(), "{}", describe(&outcome));
    Ok(())
}

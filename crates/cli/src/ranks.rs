//! Ranks of MPI that begin by `katydid run` below a launcher that did not (`katydid_job::ranks`): how one comes into the job of
//! all, and the hidden command that supervises that.
//!
//! `katydid job-ranks` is run twice: by the rank that comes first, and by that process, which ends at once, so that the
//! supervisor is nobody's descendant. It says `ready` to the rank, or why it cannot be that.

use std::env;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::process::{Command, ExitCode, Stdio};

use katydid_job::folder::FolderError;
use katydid_job::inherited;
use katydid_job::ranks::{Launcher, Place};
use rustix::fs::{Mode, OFlags, open};
use rustix::process::setsid;
use rustix::stdio::{dup2_stderr, dup2_stdout};

use crate::failure::{Failure, Outcome, say};
use crate::flags::RanksFlags;
use crate::run::Launch;

const READY: &str = "ready";
const COMMAND: &str = "job-ranks";

/// Why ranks are no job together.
#[derive(Debug, thiserror::Error)]
enum JoinError {
    #[error(transparent)]
    Folder(#[from] FolderError),
    #[error("cannot start a supervisor: {0}")]
    Start(#[from] io::Error),
    #[error("{0}")]
    Said(String),
}

/// The place of the job of this rank's launcher. Without one the rank is a job of its own.
pub(crate) fn join(launcher: Launcher) -> Option<Place> {
    let place = launcher.job(|| start(launcher));
    let place = place.and_then(|place| place.ok_or_else(|| JoinError::Said("its supervisor is gone".to_owned())));
    let said = |error: &JoinError| {
        let launcher = launcher.name();
        say(format_args!(
            "the ranks of {launcher} are no job together, and no checkpoint can bring them back: {error}"
        ));
    };
    place.inspect_err(said).ok()
}

/// Starts the supervisor with the flags of this rank, and waits until it is ready.
fn start(launcher: Launcher) -> Result<(), JoinError> {
    let mut command = Command::new(env::current_exe()?);
    command.args([COMMAND, "--launcher", &launcher.pid().to_string()]).args(env::args_os().skip(2));
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let mut said = String::new();
    child.stdout.take().map(|mut stdout| stdout.read_to_string(&mut said)).transpose()?;
    child.wait()?;
    if said == READY { Ok(()) } else { Err(JoinError::Said(said)) }
}

/// Runs the command: the first time as a rank's child, then as nobody's.
pub(crate) fn main(flags: &RanksFlags) -> Outcome {
    let launcher = Launcher::at(flags.launcher);
    if !flags.alone {
        let again = Command::new(env::current_exe().map_err(Failure::work)?)
            .args([COMMAND, "--alone"])
            .args(env::args_os().skip(2))
            .spawn();
        return again.map(|_| ExitCode::SUCCESS).map_err(Failure::work);
    }
    part_from_rank(launcher).map_err(Failure::work)?;
    let launch = Launch::prepare(&flags.run.session, &flags.run.command);
    let ended = launch.and_then(|launch| launch.attend(launcher, &flags.run, || answer(READY)));
    ended.inspect_err(|failure| answer(&failure.to_string()))
}

/// Keeps nothing that is the rank's: neither what it has open, for the launcher waits until nobody has a rank's streams, nor its
/// session and processors. What is to be said goes where the launcher's own words go.
fn part_from_rank(launcher: Launcher) -> io::Result<()> {
    // SAFETY: this process has parsed its arguments and done nothing else.
    #[expect(unsafe_code, reason = "the descriptors that a process is started with are nobody's until it takes them")]
    drop(unsafe { inherited::take() }?);
    setsid()?;
    launcher.share_processors()?;
    let words = format!("/proc/{}/fd/2", launcher.pid());
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::NOCTTY | OFlags::CLOEXEC;
    // A socket cannot be opened anew.
    let words = open(words, flags, Mode::empty()).or_else(|_| open("/dev/null", flags, Mode::empty()))?;
    Ok(dup2_stderr(words)?)
}

/// Tells the rank that waits, once.
fn answer(word: &str) {
    // Whoever is gone needs no answer.
    let _ = io::stdout().write_all(word.as_bytes()).and_then(|()| io::stdout().flush());
    let nowhere = File::options().write(true).open("/dev/null");
    let _ = nowhere.map(|nowhere| dup2_stdout(nowhere.as_fd()));
}

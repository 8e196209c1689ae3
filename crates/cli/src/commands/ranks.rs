//! The hidden command that supervises MPI ranks that begin by `katydid run` below a launcher that does not
//! (`katydid_job::supervisor::ranks`, `rank_job.rs`).
//!
//! `katydid job-ranks` runs twice: the first rank starts it, and that process starts it again and ends at once, so that the
//! supervisor is no process's descendant. It answers `ready` to the rank, or an error.

use std::cell::Cell;
use std::env;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, ExitCode};
use std::thread;
use std::time::Duration;

use katydid_job::process::inherited_fds;
use katydid_job::process::tree;
use katydid_job::supervisor::ranks::Launcher;
use rustix::process::setsid;
use rustix::stdio::{dup2_stderr, dup2_stdout};

use crate::args::flags::RanksFlags;
use crate::commands::guard::drop_signals;
use crate::commands::run::Launch;
use crate::rank_job::{RANKS_COMMAND, READY_MESSAGE};
use katydid_cli_core::output::failure::{Failure, Outcome};

/// Interval between checks whether the parent has ended.
const PARENT_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Runs the command: first as a rank's child, then as an orphan.
pub(crate) fn main(flags: &RanksFlags) -> Outcome {
    let launcher = Launcher::at(flags.launcher);
    let Some(parent) = flags.orphan_of else {
        let again = Command::new(env::current_exe().map_err(Failure::work)?)
            .args([RANKS_COMMAND, "--orphan-of", &std::process::id().to_string()])
            .args(env::args_os().skip(2))
            .spawn();
        return again.map(|_| ExitCode::SUCCESS).map_err(Failure::work);
    };
    // A batch system's signals to all processes of the job are for the ranks, which still need their workers then.
    drop_signals().map_err(Failure::work)?;
    let is_ready = Cell::new(false);
    let ready = || {
        is_ready.set(true);
        answer(READY_MESSAGE);
    };
    let parted = part_from_rank(launcher, parent).map_err(Failure::work);
    let launch = parted.and_then(|()| Launch::prepare(&flags.run.session, &flags.run.command));
    match launch.and_then(|launch| launch.supervise_ranks(launcher, &flags.run, ready)) {
        // The rank prints it.
        Err(failure) if !is_ready.get() => {
            answer(&failure.to_string());
            Ok(ExitCode::FAILURE)
        }
        ended => ended,
    }
}

/// Gives up everything of the rank: its open files, since the launcher waits until no process has a rank's streams, and its
/// session and processors. Messages go to the launcher's standard error.
fn part_from_rank(launcher: Launcher, parent: u32) -> io::Result<()> {
    // SAFETY: this process has parsed its arguments and done nothing else.
    #[expect(unsafe_code, reason = "descriptors of a new process belong to no code until it takes them")]
    drop(unsafe { inherited_fds::take() }?);
    setsid()?;
    // If that fails, the rank's processors must do.
    let _ = launcher.share_processors();
    let nowhere = || File::options().write(true).open("/dev/null").map(OwnedFd::from);
    dup2_stderr(launcher.standard_error().or_else(|_| nowhere())?)?;
    while tree::parent(std::process::id()) == Some(parent) {
        thread::sleep(PARENT_POLL_INTERVAL);
    }
    if launcher.has_this_process() {
        return Err(io::Error::other("orphans fall to what launches them; start that with `katydid run` too"));
    }
    Ok(())
}

/// Sends the waiting rank its answer, once.
fn answer(word: &str) {
    // If the rank is gone, it needs no answer.
    let _ = io::stdout().write_all(word.as_bytes()).and_then(|()| io::stdout().flush());
    let nowhere = File::options().write(true).open("/dev/null");
    let _ = nowhere.map(|nowhere| dup2_stdout(nowhere.as_fd()));
}

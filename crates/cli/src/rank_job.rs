//! The job of an MPI rank below a launcher that `katydid run` did not start: the rank joins it, and a separate process supervises
//! it (`commands/ranks.rs`).

use std::env;
use std::io::{self, Read};
use std::process::{Command, Stdio};

use katydid_job::supervisor::folder::FolderError;
use katydid_job::supervisor::ranks::{JobAddress, Launcher};

use katydid_cli_core::output::failure::print_message;

/// Message of the supervisor once it is ready.
pub(crate) const READY_MESSAGE: &str = "ready";
/// The hidden command of the supervisor.
pub(crate) const RANKS_COMMAND: &str = "job-ranks";

/// Why ranks cannot form a job.
#[derive(Debug, thiserror::Error)]
enum JoinError {
    #[error(transparent)]
    Folder(#[from] FolderError),
    #[error("cannot start a supervisor: {0}")]
    Start(#[from] io::Error),
    #[error("{0}")]
    Said(String),
}

/// Returns the address of the job of this rank's launcher. Without a launcher the rank is a job of its own.
pub(crate) fn join() -> Option<JobAddress> {
    let Some(launcher) = Launcher::of_this_process() else {
        // One rank reports it, since the others have no launcher either.
        if env::var_os("OMPI_COMM_WORLD_RANK").is_some_and(|rank| rank == "0") {
            print_message(
                "each rank is a job of its own, and no checkpoint can restore it: the launcher is unknown; start the launcher with `katydid run` too",
            );
        }
        return None;
    };
    let membership = launcher.job(|| start(launcher));
    let membership = membership
        .and_then(|membership| membership.ok_or_else(|| JoinError::Said("its supervisor is gone".to_owned())));
    let warn = |error: &JoinError| {
        let launcher = launcher.name();
        print_message(format_args!(
            "this rank of {launcher} is a job of its own, and no checkpoint can restore it: {error}"
        ));
    };
    membership.inspect_err(warn).ok()
}

/// Starts the supervisor with the flags of this rank, and waits until it is ready.
fn start(launcher: Launcher) -> Result<(), JoinError> {
    let mut command = Command::new(env::current_exe()?);
    command.args([RANKS_COMMAND, "--launcher", &launcher.pid().to_string()]).args(env::args_os().skip(2));
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let mut output = String::new();
    child.stdout.take().map(|mut stdout| stdout.read_to_string(&mut output)).transpose()?;
    child.wait()?;
    if output == READY_MESSAGE { Ok(()) } else { Err(JoinError::Said(output)) }
}

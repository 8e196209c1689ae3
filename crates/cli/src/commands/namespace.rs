//! The hidden commands for a job in namespaces of its own (`katydid_job::supervisor::namespace`).
//!
//! A terminal's signal reaches these processes too, because they are in its foreground group. It is meant for the program, and
//! they end when that does: they catch and drop it.

use std::env;
use std::process::Command;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use katydid_job::supervisor::namespace;
use katydid_job::supervisor::namespace::JobNamespaces;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use crate::args::flags::{EnterFlags, NamespaceFlags};
use katydid_cli_core::output::failure::{Failure, Outcome};

/// Makes the namespaces, and starts [`init`] in them.
pub(crate) fn keep(flags: NamespaceFlags) -> Outcome {
    stay()?;
    let katydid = env::current_exe().map_err(Failure::work)?;
    let (namespaces, command) = split(flags);
    let mut init = Command::new(katydid);
    init.arg("job-init").args(namespaces.arguments()).arg("--").args(&command);
    namespace::keep(&namespaces, init).map(ExitCode::from).map_err(Failure::work)
}

/// Runs process 1 of the namespaces.
pub(crate) fn init(flags: NamespaceFlags) -> Outcome {
    stay()?;
    let (namespaces, command) = split(flags);
    namespace::init(&namespaces, &command).map(ExitCode::from).map_err(Failure::work)
}

/// Runs a command in the namespaces.
pub(crate) fn enter(flags: &EnterFlags) -> Outcome {
    namespace::enter(flags.pid, &flags.command).map(ExitCode::from).map_err(Failure::work)
}

fn split(flags: NamespaceFlags) -> (JobNamespaces, Vec<std::ffi::OsString>) {
    let NamespaceFlags { known_folder, folder, note, last_id, files, shared, made: journal, terminals, command } =
        flags;
    (JobNamespaces { known_folder, folder, note, last_id, files, shared, made: journal, terminals }, command)
}

/// Catches signals of a terminal. Started programs get the default handling again.
fn stay() -> Result<(), Failure> {
    let dropped = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&dropped)).map_err(Failure::work)?;
    }
    Ok(())
}

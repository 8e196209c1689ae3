//! How a command ends: success, a status of its own, or one line on standard error and an exit code.
//!
//! Here the errors of all commands become a [`Failure`] of one of few kinds. The text of every error says what failed, on what,
//! and what to do, so nothing needs to be added here.

use std::fmt::Display;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use katydid_wire::printable::printable;

/// Outcome of a command: the exit code if it did its work.
pub type Outcome = Result<ExitCode, Failure>;

/// The program could not be executed.
#[derive(Debug, thiserror::Error)]
#[error("cannot run the program: {}: {source}: {}", program.display(), self.remedy())]
pub struct RunError {
    /// Name of the program on the command line, before the search in PATH.
    pub program: PathBuf,
    /// Error that the system returned.
    pub source: io::Error,
}

impl RunError {
    fn remedy(&self) -> &'static str {
        match self.source.raw_os_error() {
            Some(libc::EMFILE | libc::ENFILE) => "allow more open files (ulimit -n)",
            Some(libc::EAGAIN) => "allow more processes (ulimit -u, or the control group's pids.max)",
            Some(libc::ENOMEM) => "free memory",
            _ => "check its name, PATH and permissions",
        }
    }

    /// Exit code, as of a shell: 127 if there is no such program, 126 if it cannot be executed.
    pub fn exit_code(&self) -> u8 {
        if self.source.kind() == io::ErrorKind::NotFound { 127 } else { 126 }
    }
}

/// Why a command did not do its work; `katydid --help` lists the exit codes.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// A check or a measurement failed.
    #[error("{0}")]
    CommandWork(String),
    /// The command line, the environment or the config file is wrong.
    #[error("{0}")]
    Usage(String),
    /// A server cannot be reached or started.
    #[error("{0}")]
    Server(String),
    /// The program of `run` or `trace` cannot be executed.
    #[error(transparent)]
    Program(#[from] RunError),
    /// The command's own output cannot be written.
    #[error("cannot write the output: {0}; write it where there is free space")]
    Output(#[from] io::Error),
}

impl Failure {
    /// A failure of a check or measurement.
    pub fn work(error: impl Display) -> Self {
        Self::CommandWork(error.to_string())
    }

    /// A mistake of the caller.
    pub fn usage(error: impl Display) -> Self {
        Self::Usage(error.to_string())
    }

    /// Failure to reach or start a server; exit status 3.
    pub fn server(error: impl Display) -> Self {
        Self::Server(error.to_string())
    }

    /// Exit status of the command, as `katydid --help` lists it.
    pub fn status(&self) -> u8 {
        match self {
            Self::CommandWork(_) | Self::Output(_) => 1,
            Self::Usage(_) => 2,
            Self::Server(_) => 3,
            Self::Program(error) => error.exit_code(),
        }
    }
}

/// Writes one line for the user to standard error, if that is open. It is made printable, since names in it come from elsewhere.
pub fn print_message(line: impl Display) {
    use io::Write;
    let text = printable(&line.to_string());
    let _ = io::stderr().write_all(format!("katydid: {text}\n").as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_those_of_a_shell() {
        let error = |kind| RunError { program: "x".into(), source: io::Error::from(kind) };
        assert_eq!(error(io::ErrorKind::NotFound).exit_code(), 127);
        assert_eq!(error(io::ErrorKind::PermissionDenied).exit_code(), 126);
    }
}

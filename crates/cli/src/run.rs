//! `katydid run`: a program with Katydid's libcuda.so.1 under it.
//!
//! With a server known, katydid becomes the program (exec): no process of ours stays behind. Without one, the server
//! runs inside this process for as long as the program does.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode, ExitStatus};

use katydid_transport::Address;

use crate::address::{self, Known};
use crate::failure::{Failure, Outcome};
use crate::flags::{Link, RunFlags, SessionFlags};
use crate::layout::{self, Layout};
use crate::private::PrivateServer;
use crate::supervise;

/// The program could not be executed.
#[derive(Debug, thiserror::Error)]
#[error("cannot run the program: {}: {source}: check its name, PATH and permissions", program.display())]
pub(crate) struct RunError {
    /// As given, before the search in PATH.
    program: PathBuf,
    /// What the system said.
    source: io::Error,
}

impl RunError {
    /// As a shell: 127 when there is no such program, 126 when it is none.
    pub(crate) fn exit_code(&self) -> u8 {
        if self.source.kind() == io::ErrorKind::NotFound { 127 } else { 126 }
    }
}

/// A program that is ready to be started under Katydid.
#[derive(Debug)]
pub(crate) struct Launch {
    /// Its environment lacks only the server.
    command: Command,
    /// The server to use; without one a private one is started.
    known: Option<Known>,
    /// For a private server.
    driver: String,
}

impl Launch {
    /// Finds the libraries and the server, and fails on whatever could not work before anything is started.
    pub(crate) fn prepare(session: &SessionFlags, line: &[OsString]) -> Result<Self, Failure> {
        let layout = Layout::find().map_err(Failure::server)?;
        layout.check_shim().map_err(Failure::server)?;
        let known = match session.driver {
            Some(_) => None,
            None => address::resolve(session.server.as_deref()).map_err(Failure::usage)?,
        };
        check_link(session.link, known.as_ref())?;
        let (program, arguments) = line.split_first().ok_or_else(|| Failure::usage("no program given"))?;
        let mut command = Command::new(program);
        command.args(arguments).env(layout::SEARCH, layout.program_search());
        describe(&mut command, session);
        Ok(Self { command, known, driver: session.driver.clone().unwrap_or_else(|| "auto".to_owned()) })
    }

    /// Sets a variable of the program.
    pub(crate) fn set(&mut self, name: &str, value: impl AsRef<OsStr>) {
        self.command.env(name, value);
    }

    /// Becomes the program when the server is known; else runs it beside a private server.
    fn start(mut self) -> Outcome {
        match self.known.take() {
            Some(known) => Err(self.exec(&known)),
            None => Ok(ExitCode::from(supervise::exit_code(self.run_private()?))),
        }
    }

    /// Runs the program as a child in either case, and says how it ended.
    pub(crate) fn wait(mut self) -> Result<ExitStatus, Failure> {
        match self.known.take() {
            Some(known) => {
                known.reach().map_err(Failure::server)?;
                self.set(address::VARIABLE, known.address.to_string());
                self.supervise()
            }
            None => self.run_private(),
        }
    }

    /// Returns only when it failed.
    fn exec(mut self, known: &Known) -> Failure {
        if let Err(error) = known.reach() {
            return Failure::server(error);
        }
        self.set(address::VARIABLE, known.address.to_string());
        let source = self.command.exec();
        self.error(source).into()
    }

    /// The server's first worker warms up while the program starts.
    fn run_private(mut self) -> Result<ExitStatus, Failure> {
        let server = PrivateServer::start(&self.driver)?;
        self.set(address::VARIABLE, server.address().to_string());
        let status = self.supervise();
        server.stop();
        status
    }

    /// Runs the program as a child.
    fn supervise(&mut self) -> Result<ExitStatus, Failure> {
        supervise::run(&mut self.command).map_err(|source| self.error(source).into())
    }

    /// Names the program in what the system said.
    fn error(&self, source: io::Error) -> RunError {
        RunError { program: PathBuf::from(self.command.get_program()), source }
    }
}

/// Tells the program's side what the flags say of its session.
fn describe(command: &mut Command, session: &SessionFlags) {
    if let Some(name) = &session.name {
        command.env("KATYDID_NAME", name);
    }
    if let Some(memory) = session.memory {
        command.env("KATYDID_MEMORY", memory.0.to_string());
    }
    if let Some(link) = session.link {
        command.env("KATYDID_LINK", link.word());
    }
}

/// Shared memory does not cross a network.
fn check_link(link: Option<Link>, known: Option<&Known>) -> Result<(), Failure> {
    match known {
        Some(Known { address: address @ Address::Tcp { .. }, .. }) if link == Some(Link::Shm) => Err(Failure::usage(
            format!("--link shm does not work with {address}: use --link stream, or a unix: address on one machine"),
        )),
        _ => Ok(()),
    }
}

/// Runs the command.
pub(crate) fn main(flags: &RunFlags) -> Outcome {
    Launch::prepare(&flags.session, &flags.command)?.start()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_memory_over_tcp_is_a_usage_error() {
        let known = Known { address: "tcp://h:1".parse().unwrap(), origin: address::Origin::Flag };
        assert!(matches!(check_link(Some(Link::Shm), Some(&known)), Err(Failure::Usage(_))));
        assert!(check_link(None, Some(&known)).is_ok() && check_link(Some(Link::Shm), None).is_ok());
    }

    #[test]
    fn exit_codes_are_those_of_a_shell() {
        let error = |kind| RunError { program: "x".into(), source: io::Error::from(kind) };
        assert_eq!(error(io::ErrorKind::NotFound).exit_code(), 127);
        assert_eq!(error(io::ErrorKind::PermissionDenied).exit_code(), 126);
    }
}

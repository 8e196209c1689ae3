//! The ways from a program to a driver: directly, or through Katydid in one of several modes.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::commands::{clean, katydid};
use crate::paths::Paths;
use crate::server::Server;

/// One way from a program to a driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Way {
    /// The program's runtime loads the driver library itself, from this folder or the system's.
    Direct {
        /// Short name in reports.
        name: &'static str,
        /// `None` for the system's library.
        folder: Option<PathBuf>,
    },
    /// `katydid run`, with a private server for this program.
    Private {
        /// `auto`, `soft` or a path.
        driver: String,
    },
    /// `katydid run --server`, with a server that other programs use too.
    Served {
        /// Short name in reports.
        name: &'static str,
        /// Address that the server listens on.
        address: String,
        /// Whether to send frames over the socket instead of shared memory.
        as_stream: bool,
    },
}

impl fmt::Display for Way {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Direct { name, .. } | Self::Served { name, .. } => name,
            Self::Private { .. } => "private",
        })
    }
}

impl Way {
    /// Returns the ways through one server: over shared memory and over TCP.
    pub fn through(server: &Server) -> [Self; 2] {
        [
            Self::Served { name: "shm", address: server.unix(), as_stream: false },
            Self::Served { name: "tcp", address: server.tcp().to_owned(), as_stream: false },
        ]
    }

    /// Returns the way with frames over a unix socket, to the same server.
    pub fn as_stream(server: &Server) -> Self {
        Self::Served { name: "unix", address: server.unix(), as_stream: true }
    }

    /// Returns the way over TLS to the same server, if it has such an address.
    pub fn tls(server: &Server) -> Option<Self> {
        let address = server.tls()?.to_owned();
        Some(Self::Served { name: "tls", address, as_stream: false })
    }

    /// Returns the command that runs `program` on this way; arguments can be added to it.
    pub fn command(&self, paths: &Paths, program: &Path) -> Command {
        match self {
            Self::Direct { folder, .. } => {
                let mut command = Command::new(program);
                clean(&mut command, paths, folder.as_deref());
                command
            }
            Self::Private { .. } | Self::Served { .. } => self.job(paths, &[], program),
        }
    }

    /// Returns a command as [`Way::command`] does, with further options of `katydid run`. A direct way has no such options: it
    /// becomes `katydid run` with a private server.
    pub fn job(&self, paths: &Paths, options: &[&str], program: &Path) -> Command {
        let mut command = katydid(paths, &["run"]);
        self.to_the_server(&mut command);
        if let Self::Served { as_stream: true, .. } = self {
            command.args(["--link", "stream"]);
        }
        // Large copies use several connections, even with few processors.
        command.args(["--lanes", "3"]).args(options).arg("--").arg(program);
        command
    }

    /// Returns the command that restores a checkpoint of `image` on this way: the latest, or the one that an option selects.
    pub fn restore(&self, paths: &Paths, image: &Path, options: &[&str]) -> Command {
        let mut command = katydid(paths, &["restore"]);
        self.to_the_server(&mut command);
        command.args(options).arg(image);
        command
    }

    fn to_the_server(&self, command: &mut Command) {
        match self {
            Self::Direct { .. } => {}
            Self::Private { driver } => drop(command.args(["--driver", driver])),
            Self::Served { address, .. } => drop(command.args(["--server", address])),
        }
    }
}

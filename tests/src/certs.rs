//! A certificate authority with certificates, made by `katydid certs` as users do.

use std::path::{Path, PathBuf};

use crate::commands::katydid;
use crate::paths::Paths;
use crate::program::{self, Outcome};
use crate::watch::WAIT_TIMEOUT;

/// `katydid certs` failed.
#[derive(Debug, thiserror::Error)]
#[error("katydid certs fails; it said:\n{log}")]
pub struct CertsError {
    /// Its standard error.
    log: String,
}

/// Folders with the certificates of an authority, a server and a program.
#[derive(Debug)]
pub struct Certs {
    folder: PathBuf,
}

impl Certs {
    /// Makes an authority, a certificate for a server on loopback, and one for a program, in a new folder.
    ///
    /// # Errors
    ///
    /// [`CertsError`], with the output of `katydid certs`.
    pub fn make(paths: &Paths, folder: &Path) -> Result<Self, CertsError> {
        let certs = Self { folder: folder.to_owned() };
        let authority = folder.join("authority").display().to_string();
        let issue = |purpose, name| {
            let output = folder.join(purpose).display().to_string();
            run(paths, &["certs", purpose, &authority, "-o", &output, "--name", name])
        };
        run(paths, &["certs", "init", &authority])?;
        issue("server", "127.0.0.1")?;
        issue("client", "tester")?;
        Ok(certs)
    }

    /// Returns the folder for `katydid serve --certs`.
    pub fn server(&self) -> PathBuf {
        self.folder.join("server")
    }

    /// Returns the folder for `katydid run --certs`.
    pub fn client(&self) -> PathBuf {
        self.folder.join("client")
    }
}

fn run(paths: &Paths, arguments: &[&str]) -> Result<Outcome, CertsError> {
    let failed = |log: String| CertsError { log };
    let outcome =
        program::run(&mut katydid(paths, arguments), WAIT_TIMEOUT).map_err(|error| failed(error.to_string()))?;
    if outcome.status.success() { Ok(outcome) } else { Err(failed(outcome.errors())) }
}

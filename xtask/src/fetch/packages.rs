//! Python packages by files of pins, and the distribution's Open MPI.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::shell;

/// Versions of Open MPI that have the options for starting ranks; 5 has no `vader`.
pub(crate) const OPEN_MPI: [&str; 2] = ["4.0", "4.1"];

/// Arguments that work only with a compiler and its headers: `openmpi-bin` has the former without the latter.
pub(crate) const MPI_COMPILES: [&str; 6] = ["-E", "-include", "mpi.h", "-x", "c++", "/dev/null"];

/// Options with which pip takes the pinned packages and nothing else.
const PIP_INSTALL: [&str; 7] = [
    "install",
    "--quiet",
    "--disable-pip-version-check",
    "--no-deps",
    "--require-hashes",
    "--only-binary=:all:",
    "--root-user-action=ignore",
];

/// Returns whether programs with ranks can be built and run.
pub(crate) fn has_open_mpi() -> bool {
    let version = shell::read(Command::new("mpirun").arg("--version")).unwrap_or_default();
    let is_known = OPEN_MPI.iter().any(|known| version.starts_with(&format!("mpirun (Open MPI) {known}.")));
    is_known && shell::works("mpicxx", &MPI_COMPILES)
}

/// Makes a virtual environment with the packages of a file of pins.
pub(crate) fn environment(python: &Path, pins: &Path) -> Result<()> {
    remove(python)?;
    shell::run(Command::new("python3").args(["-m", "venv", "--without-pip"]).arg(python))?;
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "--python"]).arg(python.join("bin/python"));
    pip.args(PIP_INSTALL).arg("-r").arg(pins);
    shell::run(&mut pip).context("the pins are for CPython 3.11 to 3.13 on x86-64; is `python3` one of those?")
}

/// Returns the command that unpacks the packages of a file of pins into `target`.
pub(crate) fn pip(target: &Path, pins: &Path) -> Command {
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip"]).args(PIP_INSTALL).arg("--target").arg(target).arg("-r").arg(pins);
    pip
}

/// Unpacks the packages of a file of pins into `target`, for a Python on another machine.
pub(crate) fn unpack_for(version: &str, target: &Path, pins: &Path) -> Result<()> {
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip"]).args(PIP_INSTALL).args(["--python-version", version, "--target"]).arg(target);
    shell::run(pip.arg("-r").arg(pins))
}

/// Removes a folder, if it exists.
pub(crate) fn remove(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", folder.display()))
        }
        _ => Ok(()),
    }
}

//! `katydid-criu`: starts the CRIU that is installed beside it, with the capabilities that were given to this file.
//!
//! ```text
//! lib/katydid/katydid-criu          this program, which gets capabilities by `setcap`
//! lib/katydid/criu/                 CRIU with a loader and libraries of its own
//! ```
//!
//! Katydid's own CRIU is started by its own loader, so capabilities of CRIU's file would have no effect. This program has them,
//! makes them ambient, and executes the loader.
//!
//! The rule: it executes no file that another user may have written, and passes on no environment variable that could make a
//! loader or CRIU run other code. A user who may run it can trace any process through CRIU, so it belongs to a trusted group.

use std::env;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, configure_capability_in_ambient_set, set_capabilities,
};

/// CRIU's folder, beside this program, and the paths in it.
const CRIU_FOLDER: &str = "criu";
const LIBRARY_FOLDER: &str = "usr/lib/x86_64-linux-gnu";
const LOADER_FILE: &str = "ld-linux-x86-64.so.2";
const CRIU_PROGRAM: &str = "usr/sbin/criu";
/// The only variable that is passed on: CRIU keeps its findings about the kernel there.
const RUNTIME_DIR_VARIABLE: &str = "XDG_RUNTIME_DIR";
/// Mode bits that let users other than the owner write.
const OTHERS_WRITE_MODE: u32 = 0o022;

/// Why CRIU was not started.
#[derive(Debug, thiserror::Error)]
enum LaunchError {
    #[error("cannot tell where this program lies: {0}")]
    NoSelf(io::Error),
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error(
        "{} may be written by others than the owner of {}: CRIU is not started with capabilities from there",
        path.display(),
        program.display()
    )]
    Writable { path: PathBuf, program: PathBuf },
    #[error("cannot pass capabilities on: {0}")]
    Capabilities(io::Error),
    #[error("cannot execute {}: {source}", path.display())]
    Execute { path: PathBuf, source: io::Error },
}

fn main() -> ExitCode {
    let Err(error) = launch();
    eprintln!("katydid-criu: {error}");
    ExitCode::from(126)
}

/// Executes CRIU in this process; returns only on failure.
fn launch() -> Result<std::convert::Infallible, LaunchError> {
    let program = env::current_exe().map_err(LaunchError::NoSelf)?;
    let folder = program.with_file_name(CRIU_FOLDER);
    let (libraries, criu) = (folder.join(LIBRARY_FOLDER), folder.join(CRIU_PROGRAM));
    let loader = libraries.join(LOADER_FILE);
    check(&program, &folder)?;
    pass_on_capabilities().map_err(|error| LaunchError::Capabilities(error.into()))?;
    let runtime_dir = env::var_os(RUNTIME_DIR_VARIABLE);
    let mut command = Command::new(&loader);
    command.arg("--library-path").arg(&libraries).arg(&criu).args(env::args_os().skip(1));
    command.env_clear().envs(runtime_dir.map(|value| (RUNTIME_DIR_VARIABLE, value)));
    Err(LaunchError::Execute { path: loader, source: command.exec() })
}

/// Checks that all files of CRIU belong to this program's owner, and that no other user may write them.
fn check(program: &Path, folder: &Path) -> Result<(), LaunchError> {
    let owner = stat(program)?.uid();
    let mut left = vec![folder.to_owned()];
    while let Some(path) = left.pop() {
        let status = stat(&path)?;
        // The mode of a link means nothing; its target is checked in its own folder.
        let is_open = !status.is_symlink() && status.mode() & OTHERS_WRITE_MODE != 0;
        if is_open || status.uid() != owner {
            return Err(LaunchError::Writable { path, program: program.to_owned() });
        }
        if status.is_dir() {
            let failed = |source| LaunchError::File { path: path.clone(), source };
            for entry in fs::read_dir(&path).map_err(failed)? {
                left.push(entry.map_err(failed)?.path());
            }
        }
    }
    Ok(())
}

fn stat(path: &Path) -> Result<fs::Metadata, LaunchError> {
    fs::symlink_metadata(path).map_err(|source| LaunchError::File { path: path.to_owned(), source })
}

/// Makes all permitted capabilities of this process ambient, so that what it executes has them too.
fn pass_on_capabilities() -> rustix::io::Result<()> {
    let CapabilitySets { permitted, .. } = capabilities(None)?;
    set_capabilities(None, CapabilitySets { effective: permitted, permitted, inheritable: permitted })?;
    permitted.iter().try_for_each(|capability: CapabilitySet| configure_capability_in_ambient_set(capability, true))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_folder_that_others_may_write_is_refused() {
        let installed = env::temp_dir().join(format!("katydid-criu-launcher-{}", std::process::id()));
        let (program, folder) = (installed.join("katydid-criu"), installed.join(CRIU_FOLDER));
        fs::create_dir_all(folder.join("usr/sbin")).unwrap();
        fs::write(&program, "").unwrap();
        fs::write(folder.join(CRIU_PROGRAM), "").unwrap();
        let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        for path in [&folder, &folder.join("usr"), &folder.join("usr/sbin"), &folder.join(CRIU_PROGRAM)] {
            mode(path, 0o755);
        }
        let first = check(&program, &folder);
        mode(&folder.join(CRIU_PROGRAM), 0o775);
        let second = check(&program, &folder).unwrap_err().to_string();
        fs::remove_dir_all(&installed).unwrap();
        first.unwrap();
        assert!(second.contains("criu may be written by others"), "{second}");
    }

    #[test]
    fn capabilities_that_there_are_not_are_none_to_pass_on() {
        std::thread::spawn(pass_on_capabilities).join().unwrap().unwrap();
    }
}

//! Commands of our own tool and of programs, without the settings of the caller.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::paths::Paths;

/// Our own tool, as a user without any settings calls it.
pub fn katydid(paths: &Paths, arguments: &[&str]) -> Command {
    let mut command = bare(paths, &paths.katydid());
    command.args(arguments);
    command
}

/// A program that is not begun by our tool.
pub(crate) fn bare(paths: &Paths, program: &Path) -> Command {
    let mut command = Command::new(program);
    clean(&mut command, paths, None);
    command
}

/// Leaves nothing of the caller's own Katydid settings, and lets shared runtimes be found.
pub(crate) fn clean(command: &mut Command, paths: &Paths, first: Option<&Path>) {
    for (name, _) in env::vars_os() {
        if name.to_string_lossy().starts_with("KATYDID") {
            command.env_remove(name);
        }
    }
    command.env_remove("REMOTE_GPU_ADDRESS").env("LD_LIBRARY_PATH", search_path(paths, first));
    command.env("KATYDID_CACHE", paths.cache());
    // A busy machine starts workers late; other tests cover a server that never answers.
    command.env("KATYDID_CONNECT_TIMEOUT", "300s");
}

fn search_path(paths: &Paths, first: Option<&Path>) -> OsString {
    let folders = first.into_iter().chain(paths.runtimes.iter().map(PathBuf::as_path));
    // Only a folder with a colon in its name cannot be joined; the programs then say what they miss.
    env::join_paths(folders).unwrap_or_default()
}

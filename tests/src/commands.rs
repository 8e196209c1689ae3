//! Commands of Katydid's tool and of programs, without the caller's settings.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::paths::Paths;

/// Returns a command of Katydid's tool, as a user without settings calls it.
pub fn katydid(paths: &Paths, arguments: &[&str]) -> Command {
    let mut command = bare(paths, &paths.katydid());
    command.args(arguments);
    command
}

/// Returns a command for a program that Katydid's tool does not start.
pub(crate) fn bare(paths: &Paths, program: &Path) -> Command {
    let mut command = Command::new(program);
    clean(&mut command, paths, None);
    command
}

/// Removes the caller's Katydid settings, and makes shared runtimes findable.
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
    // Only a folder with a colon in its name cannot be joined; programs then report what they miss.
    env::join_paths(folders).unwrap_or_default()
}

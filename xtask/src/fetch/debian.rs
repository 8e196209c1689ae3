//! Debian packages, unpacked below a folder of the target folder without being installed.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::fetch::criu::{clear, configure};
use crate::shell;

/// Folders that are removed after unpacking.
const SUPERFLUOUS_FOLDERS: [&str; 3] = ["usr/share/doc", "usr/share/man", "etc"];

/// Returns whether Debian's packages can be fetched and unpacked here.
pub(crate) fn has_apt() -> bool {
    shell::works("apt-get", &["--version"]) && shell::works("dpkg-deb", &["--version"])
}

/// Tries `work` with one source after the other until it succeeds. If all fail, returns the error of each on a separate line.
pub(crate) fn from_one_of(sources: &[&str], mut work: impl FnMut(&str) -> Result<()>) -> Result<(), String> {
    let mut failures = Vec::new();
    for source in sources {
        match work(source) {
            Ok(()) => return Ok(()),
            Err(error) => failures.push(format!("{source}: {error:#}")),
        }
    }
    Err(failures.join("\n"))
}

/// Unpacks the packages of `pins` from `source` below `work/root`.
pub(crate) fn unpack(source: &str, work: &Path, pins: &str) -> Result<()> {
    clear(work)?;
    for folder in ["state/lists/partial", "cache/archives/partial", "packages", "root"] {
        fs::create_dir_all(work.join(folder)).with_context(|| format!("cannot make {}", work.display()))?;
    }
    let config = configure(source, work)?;
    let apt = |arguments: &[&str]| {
        let mut command = Command::new("apt-get");
        command.args(arguments).env("APT_CONFIG", &config).env("DEBIAN_FRONTEND", "noninteractive");
        shell::read(command.current_dir(work.join("packages")))
    };
    apt(&["update", "-qq"])?;
    let pins: Vec<&str> = pins.lines().filter(|line| !line.starts_with('#')).collect();
    apt(&[&["download", "-qq"], &pins[..]].concat())?;
    for entry in fs::read_dir(work.join("packages")).context("cannot read the packages")? {
        let path = entry.context("cannot read the packages")?.path();
        shell::run(Command::new("dpkg-deb").arg("--extract").arg(&path).arg(work.join("root")))?;
    }
    SUPERFLUOUS_FOLDERS.iter().try_for_each(|path| clear(&work.join("root").join(path)))
}

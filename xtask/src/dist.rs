//! Installs the binaries as a user has them: `bin/katydid` and the two libraries beside it.
//!
//! Files are replaced by renaming, so that a running server or program keeps the file it has open.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::output::step;
use crate::shell;
use crate::tree::Tree;

/// Built file, and where it goes.
const FILES: [(&str, &str); 3] = [
    ("katydid", "bin/katydid"),
    ("libkatydid_shim_cuda.so", "lib/katydid/shim/libcuda.so.1"),
    ("libkatydid_softcuda.so", "lib/katydid/soft/libcuda.so.1"),
];

/// Builds and installs into `target/dist` or `target/dist-release`.
pub(crate) fn run(tree: &Tree, release: bool) -> Result<()> {
    let (profile, folder) = if release { ("release", "dist-release") } else { ("debug", "dist") };
    step(&format!("building Katydid into {}", tree.target.join(folder).display()));
    let mut cargo = shell::cargo(&tree.root, &["build", "--quiet"]);
    cargo.args(["--package", "katydid-cli", "--package", "katydid-shim-cuda", "--package", "katydid-softcuda"]);
    if release {
        cargo.arg("--release");
    }
    shell::run(&mut cargo)?;
    for (built, installed) in FILES {
        install(&tree.target.join(profile).join(built), &tree.target.join(folder).join(installed))?;
    }
    for library in ["shim", "soft"] {
        link(&tree.target.join(folder).join("lib/katydid").join(library))?;
    }
    Ok(())
}

/// Puts a copy in place, and leaves an equal one alone.
fn install(built: &Path, installed: &Path) -> Result<()> {
    let content = fs::read(built).with_context(|| format!("cannot read {}", built.display()))?;
    if fs::read(installed).is_ok_and(|old| old == content) {
        return Ok(());
    }
    let folder = installed.parent().map_or_else(PathBuf::new, Path::to_owned);
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let fresh = folder.join(".new");
    fs::copy(built, &fresh).with_context(|| format!("cannot write {}", fresh.display()))?;
    fs::rename(&fresh, installed).with_context(|| format!("cannot replace {}", installed.display()))
}

/// `libcuda.so` for linkers and for programs that ask for that name.
fn link(folder: &Path) -> Result<()> {
    let link = folder.join("libcuda.so");
    if link.symlink_metadata().is_ok() {
        return Ok(());
    }
    symlink("libcuda.so.1", &link).with_context(|| format!("cannot make {}", link.display()))
}

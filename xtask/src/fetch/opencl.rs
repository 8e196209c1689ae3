//! PoCL, a loader and headers of OpenCL out of Debian's packages, unpacked below the target folder without touching the system.
//!
//! PoCL finds its own files by the location of its library. As for CRIU (`criu.rs`), the result is complete or missing, and
//! missing without apt or a network. The tests of OpenCL report that then.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::fetch::criu::clear;
use crate::fetch::debian::{from_one_of, has_apt, unpack};
use crate::fetch::{opencl_intel, opencl_loader};
use crate::output::{line, step};
use crate::tree::Tree;

/// Pinned packages, each with its version.
pub(crate) const OPENCL_PINS: &str = include_str!("../../opencl.txt");
/// Sources of the packages, in the order in which they are tried.
pub(crate) const OPENCL_SOURCES: [&str; 2] = [
    "http://deb.debian.org/debian bookworm main",
    "http://snapshot.debian.org/archive/debian/20261120T000000Z bookworm main",
];
/// Folder of the libraries, below the root.
pub(crate) const LIBRARY_FOLDER: &str = "usr/lib/x86_64-linux-gnu";

/// Returns the root, below the target folder.
pub(crate) fn root(tree: &Tree) -> PathBuf {
    tree.target.join("opencl")
}

/// Fetches the missing parts. A reason why they cannot be fetched is printed, and is not an error.
pub(crate) fn fetch(tree: &Tree) -> Result<()> {
    fetch_driver(tree)?;
    opencl_loader::fetch(tree)?;
    opencl_intel::fetch(tree)
}

fn fetch_driver(tree: &Tree) -> Result<()> {
    let (root, work) = (root(tree), tree.target.join("opencl.new"));
    if fs::read_to_string(root.join("pins.txt")).is_ok_and(|text| text == OPENCL_PINS) {
        return Ok(());
    }
    if !has_apt() {
        line("no OpenCL driver was fetched: this takes apt-get and dpkg-deb; programs of OpenCL are not tested");
        return Ok(());
    }
    step("fetching PoCL (16 packages of Debian, 73 MB)");
    if let Err(failures) = from_one_of(&OPENCL_SOURCES, |source| from(source, &work, &root)) {
        line(&format!("no OpenCL driver was fetched, so programs of OpenCL are not tested:\n{failures}"));
        return clear(&work);
    }
    clear(&root)?;
    fs::rename(work.join("root"), &root).with_context(|| format!("cannot place {}", root.display()))?;
    clear(&work)
}

/// Makes `work/root`, which later becomes `root`, from the packages of `source`.
fn from(source: &str, work: &Path, root: &Path) -> Result<()> {
    unpack(source, work, OPENCL_PINS)?;
    let driver = Path::new(LIBRARY_FOLDER).join("libpocl.so.2");
    if !work.join("root").join(&driver).exists() {
        bail!("the packages hold no {}", driver.display());
    }
    let named = format!("{}\n", root.join(&driver).display());
    fs::create_dir_all(work.join("root/vendors")).context("cannot name the driver")?;
    fs::write(work.join("root/vendors/pocl.icd"), named).context("cannot name the driver")?;
    fs::write(work.join("root/pins.txt"), OPENCL_PINS).context("cannot write the stamp")
}

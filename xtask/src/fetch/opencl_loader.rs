//! Khronos' loader of OpenCL, beside the usual loader on Debian (ocl-icd, in `opencl.rs`). Programs must find Katydid by either.
//! No program is linked with it; tests put its folder in front of the other's.
//!
//! Only Debian's newest release has it as a package, and it needs only a C library from 2.34 on. As for the driver, a reason why
//! it cannot be fetched is printed, and its tests report that they were left out.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::fetch::criu::{CRIU_SOURCES, clear};
use crate::fetch::debian;
use crate::output::{line, step};
use crate::tree::Tree;

/// Pinned packages of the loader, with their hashes.
const LOADER_PINS: &str = include_str!("../../opencl-loader.txt");
/// Path of its library, below the root.
const LOADER_LIBRARY_PATH: &str = "usr/lib/x86_64-linux-gnu/libOpenCL.so.1";

/// Returns the root, below the target folder.
fn root(tree: &Tree) -> PathBuf {
    tree.target.join("opencl-khronos")
}

/// Fetches the loader unless it is there.
pub(crate) fn fetch(tree: &Tree) -> Result<()> {
    let (root, work) = (root(tree), tree.target.join("opencl-khronos.new"));
    if fs::read_to_string(root.join("pins.txt")).is_ok_and(|text| text == LOADER_PINS) {
        return Ok(());
    }
    if !debian::has_apt() {
        line(
            "Khronos' loader was not fetched: this takes apt-get and dpkg-deb; programs are tested with ocl-icd alone",
        );
        return Ok(());
    }
    step("fetching Khronos' loader of OpenCL (1 package of Debian, 21 kB)");
    let found = debian::from_one_of(&CRIU_SOURCES, |source| unpack(source, &work));
    if let Err(failures) = found {
        line(&format!("Khronos' loader was not fetched, so programs are tested with ocl-icd alone:\n{failures}"));
        return clear(&work);
    }
    clear(&root)?;
    fs::rename(work.join("root"), &root).with_context(|| format!("cannot place {}", root.display()))?;
    clear(&work)
}

/// Makes `work/root` from the packages of `source`.
fn unpack(source: &str, work: &Path) -> Result<()> {
    debian::unpack(source, work, LOADER_PINS)?;
    if !work.join("root").join(LOADER_LIBRARY_PATH).exists() {
        bail!("the package holds no {LOADER_LIBRARY_PATH}");
    }
    fs::write(work.join("root/pins.txt"), LOADER_PINS).context("cannot write the stamp")
}

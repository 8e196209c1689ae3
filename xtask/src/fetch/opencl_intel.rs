//! Intel's OpenCL runtime for processors, beside PoCL (`opencl.rs`). It takes SPIR-V and has all kinds of shared virtual memory;
//! Debian's build of PoCL 3.1 has neither. It also runs on other vendors' processors.
//!
//! It comes in wheels of PyPI. As for the other driver, a reason why it cannot be fetched is printed, and its tests report that
//! they were left out.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::fetch::criu::clear;
use crate::fetch::packages;
use crate::output::{line, step};
use crate::tree::Tree;

/// Pins, with the content's hash of each wheel.
const WHEEL_PINS: &str = include_str!("../../opencl-intel.txt");
/// Path of the driver, below the root, beside all that it loads.
const INTEL_DRIVER_LIBRARY: &str = "lib/libintelocl.so";
/// Duplicates of libraries, in place of links, which wheels cannot have.
const SUPERFLUOUS_LIBRARIES: [&str; 2] = ["lib/libcommon_clang.so", "lib/libintelocl.so.2026.22.10.0"];

/// Fetches the runtime unless it is there.
pub(crate) fn fetch(tree: &Tree) -> Result<()> {
    let root = tree.target.join("opencl-intel");
    if fs::read_to_string(root.join("pins.txt")).is_ok_and(|text| text == WHEEL_PINS) {
        return Ok(());
    }
    step("fetching Intel's OpenCL runtime (3 wheels of PyPI, 273 MB, under Intel's licence)");
    if let Err(error) = unpack(&tree.root.join("xtask/opencl-intel.txt"), &root) {
        line(&format!("Intel's OpenCL runtime was not fetched, so SPIR-V is not tested: {error:#}"));
        return clear(&root);
    }
    Ok(())
}

/// Makes `root`, a Python environment, which is where pip puts a wheel's libraries.
fn unpack(pins: &Path, root: &Path) -> Result<()> {
    packages::environment(root, pins)?;
    ensure!(root.join(INTEL_DRIVER_LIBRARY).exists(), "the wheels hold no {INTEL_DRIVER_LIBRARY}");
    SUPERFLUOUS_LIBRARIES
        .iter()
        .try_for_each(|path| fs::remove_file(root.join(path)).with_context(|| format!("no {path}")))?;
    fs::create_dir_all(root.join("vendors")).context("cannot name the driver")?;
    let named = format!("{}\n", root.join(INTEL_DRIVER_LIBRARY).display());
    fs::write(root.join("vendors/intel.icd"), named).context("cannot name the driver")?;
    fs::write(root.join("pins.txt"), WHEEL_PINS).context("cannot write the stamp")
}

//! Programs of OpenCL under test, and the driver that `cargo xtask setup` fetched for them.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::places::Places;

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("apps-opencl")
}

/// What the programs print, a text each.
#[must_use]
pub fn expected() -> PathBuf {
    sources().join("expected")
}

/// The names of all programs that were built, in order. Those with ranks of MPI are not without Open MPI.
///
/// # Errors
///
/// The folder of their sources cannot be read.
pub fn programs(places: &Places) -> io::Result<Vec<String>> {
    let mut names: Vec<String> = fs::read_dir(sources())?
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "c"))
        .filter_map(|path| Some(path.file_stem()?.to_string_lossy().into_owned()))
        .filter(|name| !name.starts_with("mpi_") || program(places, name).exists())
        .collect();
    names.sort();
    Ok(names)
}

/// A built program.
#[must_use]
pub fn program(places: &Places, name: &str) -> PathBuf {
    places.apps.join("opencl").join(name)
}

/// Whether there is a driver.
#[must_use]
pub fn has_driver(places: &Places) -> bool {
    places.opencl().join("vendors").exists()
}

/// Where programs find a loader.
#[must_use]
pub fn libraries(places: &Places) -> PathBuf {
    places.opencl().join("usr/lib/x86_64-linux-gnu")
}

/// What makes a process find the driver, and compile for itself alone: PoCL's cache does not stand several processes that
/// build the same program at the same time, such as ranks of MPI (<https://github.com/pocl/pocl/issues/1480>). What is
/// compiled lies below the target folder until its process ends.
#[must_use]
pub fn driver(places: &Places) -> Vec<(&'static str, OsString)> {
    let root = places.opencl();
    vec![
        ("OCL_ICD_VENDORS", root.join("vendors").into()),
        ("LD_LIBRARY_PATH", libraries(places).into()),
        ("POCL_CACHE_DIR", root.join("cache").into()),
        ("POCL_KERNEL_CACHE", "0".into()),
    ]
}

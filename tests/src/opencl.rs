//! Programs of OpenCL under test, and the driver that `cargo xtask setup` fetched for them.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::paths::{PACK_VARIABLE, Paths};

/// Names a folder of vendors' files, for a pack whose driver is to be another one than the machine's.
const TEST_VENDORS_VARIABLE: &str = "KATYDID_TEST_OPENCL";

/// The program of random calls ([`seeds`]).
pub const RANDOM_PROGRAM: &str = "random_calls";
/// Further seeds for it: `FIRST-LAST`, or one number.
const SEEDS_VARIABLE: &str = "KATYDID_OPENCL_SEEDS";

/// The seeds that the environment wants of [`RANDOM_PROGRAM`]; none where it is silent.
///
/// # Errors
///
/// What it says is no range of numbers.
pub fn seeds() -> io::Result<Option<RangeInclusive<u64>>> {
    let Ok(text) = env::var(SEEDS_VARIABLE) else { return Ok(None) };
    let (first, last) = text.split_once('-').unwrap_or((&text, &text));
    match (first.parse(), last.parse()) {
        (Ok(first), Ok(last)) => Ok(Some(first..=last)),
        _ => Err(io::Error::other(format!("{SEEDS_VARIABLE}={text} is not a range of numbers"))),
    }
}

/// The places, with what programs of OpenCL print in place of what those of CUDA do.
#[must_use]
pub fn paths(paths: &Paths) -> Paths {
    Paths { expected: paths.expected_opencl.clone(), ..paths.clone() }
}

/// The names of all programs that were built, in order. Those with ranks of MPI are not without Open MPI, nor in a pack.
///
/// # Errors
///
/// The folders of what they print cannot be read.
pub fn programs(paths: &Paths) -> io::Result<Vec<String>> {
    let mut names = paths.expected_opencl.programs()?;
    names.retain(|name| !name.starts_with("mpi_") || program(paths, name).exists());
    Ok(names)
}

/// Path of a built program.
#[must_use]
pub fn program(paths: &Paths, name: &str) -> PathBuf {
    paths.apps.join("opencl").join(name)
}

/// The folder of the file that names the driver's library.
#[must_use]
pub fn vendors(paths: &Paths) -> PathBuf {
    let other = env::var_os(TEST_VENDORS_VARIABLE).filter(|_| is_packed());
    other.map_or_else(|| paths.opencl().join("vendors"), PathBuf::from)
}

/// Whether there is a driver; in a pack it is the machine's.
#[must_use]
pub fn has_driver(paths: &Paths) -> bool {
    vendors(paths).exists()
}

/// Whether the driver is PoCL, by whose variables tests choose other devices.
#[must_use]
pub fn is_pocl(paths: &Paths) -> bool {
    vendors(paths).join("pocl.icd").exists()
}

/// The driver's library.
///
/// # Errors
///
/// Nothing names one.
pub fn library(paths: &Paths) -> io::Result<String> {
    let file = fs::read_dir(vendors(paths))?.next().ok_or(io::ErrorKind::NotFound)??;
    Ok(fs::read_to_string(file.path())?.trim().to_owned())
}

/// The library of a driver of ours, whose platform has memory alone.
#[must_use]
pub fn memory_driver(paths: &Paths) -> PathBuf {
    program(paths, "memory.so")
}

/// PoCL's library, beside the machine's driver in a pack that has it, and what it takes besides, which travels apart.
#[must_use]
pub fn pocl(paths: &Paths) -> Option<PathBuf> {
    let is_whole = paths.opencl().join("usr/share/pocl").exists();
    Some(libraries(paths).join("libpocl.so.2")).filter(|library| is_whole && library.exists())
}

/// A second driver, with what its programs print: Intel's for processors, if it could be fetched. It is in no pack.
#[derive(Debug, Clone)]
pub struct Intel {
    /// Path of the driver's library.
    pub library: PathBuf,
    /// The folder of the file that names it.
    pub vendors: PathBuf,
    /// The places, with what programs print on it in place of what those on PoCL do.
    pub paths: Paths,
}

/// Its programs: SPIR-V, which PoCL 3.1 does not have, fine-grained shared virtual memory, which does not come from the heap, formats
/// of images that kernels only read, and programs that it returns although their links have failed.
pub const OF_INTEL: [&str; 4] = ["kept_spirv", "kept_fine_svm", "image_accesses", "separate_compilation"];

/// The driver that `cargo xtask setup` fetches beside PoCL.
#[must_use]
pub fn intel(of: &Paths) -> Option<Intel> {
    let root = of.opencl().with_file_name("opencl-intel");
    let expected = of.expected_opencl.beside("expected-intel");
    let paths = Paths { expected: expected.clone(), expected_opencl: expected, ..of.clone() };
    let intel = Intel { library: root.join("lib/libintelocl.so"), vendors: root.join("vendors"), paths };
    Some(intel).filter(|intel| intel.vendors.exists() && intel.library.exists())
}

/// Where programs find a loader.
#[must_use]
pub fn libraries(paths: &Paths) -> PathBuf {
    paths.opencl().join("usr/lib/x86_64-linux-gnu")
}

/// Where Khronos' own loader is, if it could be fetched.
#[must_use]
pub fn khronos(paths: &Paths) -> Option<PathBuf> {
    Some(khronos_folder(paths)).filter(|folder| folder.join("libOpenCL.so.1").exists())
}

/// Its folder, whether or not it is there.
#[must_use]
pub fn khronos_folder(paths: &Paths) -> PathBuf {
    paths.opencl().with_file_name("opencl-khronos").join("usr/lib/x86_64-linux-gnu")
}

/// Folders in which libraries are sought, with one in front of them.
#[must_use]
pub fn with_first(first: &Path, folders: &OsStr) -> OsString {
    let folders = [first.to_owned()].into_iter().chain(env::split_paths(folders));
    // Only a folder with a colon in its name cannot be joined; what is in there is not found then.
    env::join_paths(folders).unwrap_or_default()
}

/// For processes that build programs at the same time, such as ranks of MPI: PoCL's cache does not stand them
/// (<https://github.com/pocl/pocl/issues/1480>).
pub const WITHOUT_CACHE: (&str, &str) = ("POCL_KERNEL_CACHE", "0");

/// What makes a process find the driver, and no other that the machine's environment names.
///
/// Each call gives a cache of its own below the target folder: a program is built once for a server and the workers that come after
/// its first one.
#[must_use]
pub fn driver(paths: &Paths) -> Vec<(&'static str, OsString)> {
    vec![
        ("OCL_ICD_VENDORS", vendors(paths).into()),
        ("OCL_ICD_FILENAMES", OsString::new()),
        ("LD_LIBRARY_PATH", search(paths)),
        ("POCL_CACHE_DIR", own_cache(paths).into()),
        // What NVIDIA's driver finds compiled has no log.
        ("CUDA_CACHE_DISABLE", "1".into()),
    ]
}

/// The variables of `driver` for processes that build programs at the same time: they share no cache.
#[must_use]
pub fn driver_without_cache(paths: &Paths) -> Vec<(&'static str, OsString)> {
    [driver(paths), vec![(WITHOUT_CACHE.0, WITHOUT_CACHE.1.into())]].concat()
}

/// A folder that no other caller has. `cargo xtask test` removes what earlier runs left there.
fn own_cache(paths: &Paths) -> PathBuf {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    let number = CALLS.fetch_add(1, Ordering::Relaxed);
    let folder = paths.opencl().join("cache").join(format!("{}-{number}", process::id()));
    // A worker's sandbox opens what exists. Where it cannot be made the driver reports that when it builds.
    let _ = fs::create_dir_all(&folder);
    folder
}

/// Where the driver's libraries are sought: those of a machine's own driver where the caller seeks them.
fn search(paths: &Paths) -> OsString {
    let here = env::var_os("LD_LIBRARY_PATH").filter(|_| is_packed()).unwrap_or_default();
    with_first(&libraries(paths), &here)
}

fn is_packed() -> bool {
    env::var_os(PACK_VARIABLE).is_some()
}

//! OpenCL programs under test, and the driver that `cargo xtask setup` fetched for them.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::paths::{PACK_VARIABLE, Paths};

/// Names a vendors folder for a pack that should use another driver than the machine's.
const TEST_VENDORS_VARIABLE: &str = "KATYDID_TEST_OPENCL";

/// The program that makes random calls ([`seeds`]).
pub const RANDOM_PROGRAM: &str = "random_calls";
/// Sets further seeds for it: `FIRST-LAST`, or one number.
const SEEDS_VARIABLE: &str = "KATYDID_OPENCL_SEEDS";

/// Returns the seeds that the environment sets for [`RANDOM_PROGRAM`], if any.
///
/// # Errors
///
/// The variable is not a range of numbers.
pub fn seeds() -> io::Result<Option<RangeInclusive<u64>>> {
    let Ok(text) = env::var(SEEDS_VARIABLE) else { return Ok(None) };
    let (first, last) = text.split_once('-').unwrap_or((&text, &text));
    match (first.parse(), last.parse()) {
        (Ok(first), Ok(last)) => Ok(Some(first..=last)),
        _ => Err(io::Error::other(format!("{SEEDS_VARIABLE}={text} is not a range of numbers"))),
    }
}

/// Returns the paths, with the expected outputs of OpenCL programs in place of CUDA's.
#[must_use]
pub fn paths(paths: &Paths) -> Paths {
    Paths { expected: paths.expected_opencl.clone(), ..paths.clone() }
}

/// Returns the names of all programs that were built, in order. Programs with MPI ranks are missing without Open MPI, and in a
/// pack.
///
/// # Errors
///
/// The folders of expected outputs cannot be read.
pub fn programs(paths: &Paths) -> io::Result<Vec<String>> {
    let mut names = paths.expected_opencl.programs()?;
    names.retain(|name| !name.starts_with("mpi_") || program(paths, name).exists());
    Ok(names)
}

/// Returns the path of a built program.
#[must_use]
pub fn program(paths: &Paths, name: &str) -> PathBuf {
    paths.apps.join("opencl").join(name)
}

/// Returns the folder of the file that names the driver's library.
#[must_use]
pub fn vendors(paths: &Paths) -> PathBuf {
    let other = env::var_os(TEST_VENDORS_VARIABLE).filter(|_| is_packed());
    other.map_or_else(|| paths.opencl().join("vendors"), PathBuf::from)
}

/// Returns whether there is a driver; in a pack it is the machine's.
#[must_use]
pub fn has_driver(paths: &Paths) -> bool {
    vendors(paths).exists()
}

/// Returns whether the driver is PoCL, whose variables let tests choose other devices.
#[must_use]
pub fn is_pocl(paths: &Paths) -> bool {
    vendors(paths).join("pocl.icd").exists()
}

/// Returns the driver's library.
///
/// # Errors
///
/// No file names a library.
pub fn library(paths: &Paths) -> io::Result<String> {
    let file = fs::read_dir(vendors(paths))?.next().ok_or(io::ErrorKind::NotFound)??;
    Ok(fs::read_to_string(file.path())?.trim().to_owned())
}

/// Returns the library of the tests' own driver, whose platform supports only memory.
#[must_use]
pub fn memory_driver(paths: &Paths) -> PathBuf {
    program(paths, "memory.so")
}

/// Returns PoCL's library. A pack may have it besides the machine's driver; its further files are transferred separately.
#[must_use]
pub fn pocl(paths: &Paths) -> Option<PathBuf> {
    let is_whole = paths.opencl().join("usr/share/pocl").exists();
    Some(libraries(paths).join("libpocl.so.2")).filter(|library| is_whole && library.exists())
}

/// A second driver with its expected outputs: Intel's for processors, if it could be fetched. Packs do not include it.
#[derive(Debug, Clone)]
pub struct Intel {
    /// Path of the driver's library.
    pub library: PathBuf,
    /// The folder of the file that names the library.
    pub vendors: PathBuf,
    /// The paths, with expected outputs for this driver in place of PoCL's.
    pub paths: Paths,
}

/// Programs for this driver only. They test SPIR-V, which PoCL 3.1 lacks; fine-grained shared virtual memory that is not from the
/// heap; image formats that kernels only read; and programs that the driver returns although their links failed.
pub const OF_INTEL: [&str; 4] = ["kept_spirv", "kept_fine_svm", "image_accesses", "separate_compilation"];

/// Returns the driver that `cargo xtask setup` fetches besides PoCL.
#[must_use]
pub fn intel(of: &Paths) -> Option<Intel> {
    let root = of.opencl().with_file_name("opencl-intel");
    let expected = of.expected_opencl.beside("expected-intel");
    let paths = Paths { expected: expected.clone(), expected_opencl: expected, ..of.clone() };
    let intel = Intel { library: root.join("lib/libintelocl.so"), vendors: root.join("vendors"), paths };
    Some(intel).filter(|intel| intel.vendors.exists() && intel.library.exists())
}

/// Returns the folder in which programs find a loader.
#[must_use]
pub fn libraries(paths: &Paths) -> PathBuf {
    paths.opencl().join("usr/lib/x86_64-linux-gnu")
}

/// Returns the folder of Khronos' own loader, if it could be fetched.
#[must_use]
pub fn khronos(paths: &Paths) -> Option<PathBuf> {
    Some(khronos_folder(paths)).filter(|folder| folder.join("libOpenCL.so.1").exists())
}

/// Returns its folder, whether or not it exists.
#[must_use]
pub fn khronos_folder(paths: &Paths) -> PathBuf {
    paths.opencl().with_file_name("opencl-khronos").join("usr/lib/x86_64-linux-gnu")
}

/// Returns a library search path with another folder in front.
#[must_use]
pub fn with_first(first: &Path, folders: &OsStr) -> OsString {
    let folders = [first.to_owned()].into_iter().chain(env::split_paths(folders));
    // Only a folder with a colon in its name cannot be joined; its libraries are then not found.
    env::join_paths(folders).unwrap_or_default()
}

/// For processes that build programs at the same time, such as MPI ranks: PoCL's cache does not support that
/// (<https://github.com/pocl/pocl/issues/1480>).
pub const WITHOUT_CACHE: (&str, &str) = ("POCL_KERNEL_CACHE", "0");

/// Returns variables with which a process finds the driver, and no other driver of the machine.
///
/// Each call makes a new cache below the target folder. So a program is built once for a server and all of its workers.
#[must_use]
pub fn driver(paths: &Paths) -> Vec<(&'static str, OsString)> {
    vec![
        ("OCL_ICD_VENDORS", vendors(paths).into()),
        ("OCL_ICD_FILENAMES", OsString::new()),
        ("LD_LIBRARY_PATH", search(paths)),
        ("POCL_CACHE_DIR", own_cache(paths).into()),
        // NVIDIA's driver has no build log for programs from its cache.
        ("CUDA_CACHE_DISABLE", "1".into()),
    ]
}

/// Returns the variables of `driver` for processes that build programs at the same time: they share no cache.
#[must_use]
pub fn driver_without_cache(paths: &Paths) -> Vec<(&'static str, OsString)> {
    [driver(paths), vec![(WITHOUT_CACHE.0, WITHOUT_CACHE.1.into())]].concat()
}

/// Returns a cache folder that no other caller has. `cargo xtask test` removes those of earlier runs.
fn own_cache(paths: &Paths) -> PathBuf {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    let number = CALLS.fetch_add(1, Ordering::Relaxed);
    let folder = paths.opencl().join("cache").join(format!("{}-{number}", process::id()));
    // A worker's sandbox opens only existing folders. If this fails, the driver reports it at the first build.
    let _ = fs::create_dir_all(&folder);
    folder
}

/// Returns the search path for the driver's libraries; for a machine's own driver, it includes the caller's path.
fn search(paths: &Paths) -> OsString {
    let here = env::var_os("LD_LIBRARY_PATH").filter(|_| is_packed()).unwrap_or_default();
    with_first(&libraries(paths), &here)
}

fn is_packed() -> bool {
    env::var_os(PACK_VARIABLE).is_some()
}

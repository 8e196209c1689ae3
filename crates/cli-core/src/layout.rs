//! Paths of the installed libraries.
//!
//! ```text
//! bin/katydid
//! lib/katydid/shim/libcuda.so.1    the shim for CUDA programs
//! lib/katydid/shim/libkatydid_opencl.so, vendors/katydid.icd    the shim for OpenCL programs
//! lib/katydid/shim/libnvidia-ml.so.1    NVML, as the program's GPUs show it
//! lib/katydid/loader/libOpenCL.so.1    the OpenCL shim again, for machines without an OpenCL loader
//! lib/katydid/soft/libcuda.so.1    softcuda
//! lib/katydid/criu/                CRIU with its libraries; only used if the system's does not work
//! lib/katydid/katydid-criu         starts that CRIU with the capabilities that this file was given
//! ```
//!
//! `lib/katydid` is beside the executable's folder, or at the path in `KATYDID_LIB`.

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library, RTLD_LAZY, RTLD_LOCAL};

/// Variable that overrides the folder of the libraries.
pub const LIBRARY_FOLDER_VARIABLE: &str = "KATYDID_LIB";
/// Variable with the folder of vendors' files, which OpenCL loaders read.
pub const VENDORS_VARIABLE: &str = "OCL_ICD_VENDORS";
/// Variable with further libraries that OpenCL loaders open.
pub const ICD_LIBRARIES_VARIABLE: &str = "OCL_ICD_FILENAMES";
/// Variable with the folders that the dynamic loader searches first.
pub const SEARCH_PATH_VARIABLE: &str = "LD_LIBRARY_PATH";
/// The file name that every CUDA program asks for.
pub const CUDA_LIBRARY: &str = "libcuda.so.1";
/// The vendor library that OpenCL loaders open.
const OPENCL_LIBRARY: &str = "libkatydid_opencl.so";
/// The file name that every OpenCL program asks for: that of a loader.
pub const OPENCL_LOADER: &str = "libOpenCL.so.1";

/// The installed libraries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Path of `lib/katydid`, with the folders `shim` and `soft`.
    pub folder: PathBuf,
}

/// Why the libraries were not found.
#[derive(Debug, thiserror::Error)]
pub enum LayoutError {
    /// A file of the installation is missing.
    #[error(
        "cannot find Katydid's library: {path}: run `cargo xtask dist`, or set KATYDID_LIB to the folder of shim/ and soft/"
    )]
    Missing {
        /// The file or folder.
        path: PathBuf,
    },
    /// The kernel does not say where this executable is.
    #[error("cannot find Katydid's libraries: /proc is not mounted: set KATYDID_LIB to the folder of shim/ and soft/")]
    NoExecutable,
}

impl Layout {
    /// Finds the installation that this process belongs to; its files need not exist.
    pub fn find() -> Result<Self, LayoutError> {
        if let Some(folder) = env::var_os(LIBRARY_FOLDER_VARIABLE).filter(|value| !value.is_empty()) {
            return Ok(Self { folder: absolute(Path::new(&folder)) });
        }
        let executable = env::current_exe().map_err(|_| LayoutError::NoExecutable)?;
        Ok(Self::beside(&executable))
    }

    /// The layout of an executable in `bin/`.
    fn beside(executable: &Path) -> Self {
        let root = executable.parent().and_then(Path::parent).unwrap_or(Path::new("/"));
        Self { folder: root.join("lib/katydid") }
    }

    /// The folder that goes first into a program's `LD_LIBRARY_PATH`.
    pub fn shim_folder(&self) -> PathBuf {
        self.folder.join("shim")
    }

    /// Path of the shim for CUDA programs.
    pub fn shim(&self) -> PathBuf {
        self.shim_folder().join(CUDA_LIBRARY)
    }

    /// The folder of vendors' files, which OpenCL loaders read.
    pub fn vendors(&self) -> PathBuf {
        self.shim_folder().join("vendors")
    }

    /// Paths of the shim for OpenCL programs, and of the file that names it to loaders.
    pub fn opencl(&self) -> [PathBuf; 2] {
        [self.shim_folder().join(OPENCL_LIBRARY), self.vendors().join("katydid.icd")]
    }

    /// The folder in which the OpenCL shim has a loader's name.
    pub fn loader_folder(&self) -> PathBuf {
        self.folder.join("loader")
    }

    /// Path of softcuda, the software driver library.
    pub fn soft(&self) -> PathBuf {
        self.folder.join("soft").join(CUDA_LIBRARY)
    }

    /// Root folder of Katydid's own CRIU; it may be missing.
    pub fn criu(&self) -> PathBuf {
        self.folder.join("criu")
    }

    /// The loader's search path for programs: the shim first, then the present path. On a machine without an OpenCL loader, the
    /// folder in which the shim has a loader's name comes last.
    pub fn program_search(&self) -> OsString {
        let search = first(&self.shim_folder(), env::var_os(SEARCH_PATH_VARIABLE).as_deref());
        match has_loader() || !self.loader_folder().is_dir() {
            true => search,
            false => joined(env::split_paths(&search).chain([self.loader_folder()])),
        }
    }

    /// The loader's search path for workers, which must find the real driver instead of the shim; `None`: unset.
    pub fn driver_search(&self) -> Option<OsString> {
        env::var_os(SEARCH_PATH_VARIABLE).map(|path| joined(other_folders(&path, &self.shim_folder())))
    }

    /// Checks that the shim exists.
    pub fn check_shim(&self) -> Result<(), LayoutError> {
        let path = self.shim();
        if path.is_file() { Ok(()) } else { Err(LayoutError::Missing { path }) }
    }
}

/// Whether a program that is linked with an OpenCL loader finds one.
#[expect(unsafe_code, reason = "opens the loader's library to see whether there is one")]
pub fn has_loader() -> bool {
    // SAFETY: a loader does nothing before its first call; anything that it did would happen in every OpenCL program too.
    unsafe { Library::open(Some(OPENCL_LOADER), RTLD_LAZY | RTLD_LOCAL) }.is_ok()
}

/// A search path with `folder` first, and not repeated.
pub fn first(folder: &Path, search_path: Option<&OsStr>) -> OsString {
    joined(
        [folder.to_owned()]
            .into_iter()
            .chain(search_path.into_iter().flat_map(|search_path| other_folders(search_path, folder))),
    )
}

/// Entries of `path`, except `folder` and empty ones.
fn other_folders<'a>(path: &'a OsStr, folder: &'a Path) -> impl Iterator<Item = PathBuf> + 'a {
    env::split_paths(path).filter(move |entry| entry != folder && !entry.as_os_str().is_empty())
}

/// Joins entries of a search path, so none can hold the separator.
fn joined(entries: impl Iterator<Item = PathBuf>) -> OsString {
    env::join_paths(entries).unwrap_or_default()
}

/// Makes a path absolute: programs may change their folder before they load libraries.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_lie_beside_the_executables_folder() {
        let layout = Layout::beside(Path::new("/opt/katydid/bin/katydid"));
        assert_eq!(layout.shim(), Path::new("/opt/katydid/lib/katydid/shim/libcuda.so.1"));
        assert_eq!(layout.soft(), Path::new("/opt/katydid/lib/katydid/soft/libcuda.so.1"));
    }

    #[test]
    fn the_shim_is_first_and_only_once_in_a_programs_search_path() {
        let shim = Path::new("/k/shim");
        assert_eq!(first(shim, None), "/k/shim");
        assert_eq!(first(shim, Some(OsStr::new("/a:/k/shim::/b"))), "/k/shim:/a:/b");
    }

    #[test]
    fn a_worker_does_not_find_the_programs_library() {
        assert_eq!(joined(other_folders(OsStr::new("/k/shim:/a:/k/shim:/b"), Path::new("/k/shim"))), "/a:/b");
    }

    #[test]
    fn a_missing_shim_is_named_with_the_remedy() {
        let error = Layout { folder: "/no/such".into() }.check_shim().unwrap_err().to_string();
        assert!(error.contains("/no/such/shim/libcuda.so.1") && error.contains("KATYDID_LIB"), "{error}");
    }
}

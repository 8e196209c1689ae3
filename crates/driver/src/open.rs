//! Finds and opens a driver library.
//!
//! A library is returned only after checks: it is a driver and not Katydid's own library for programs, its `cuInit` succeeded,
//! and it has at least one device. Libraries are never unloaded: a driver keeps its own threads, and function pointers into it
//! are copied around.

#![expect(unsafe_code, reason = "loading a library and calling two functions of it is foreign code")]

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};

use libloading::Library;
use libloading::os::unix;

use crate::choice::DriverChoice;
use crate::error::DriverError;

/// Only the shim exports this symbol.
const SHIM_MARKER: &str = "katydid_shim_marker";
/// Only softcuda exports this symbol.
const SOFT_MARKER: &str = "katydid_softcuda_marker";

/// Locations of NVIDIA's library if the loader's search is altered, for instance by Katydid's own `LD_LIBRARY_PATH`.
const USUAL_DRIVER_PATHS: [&str; 5] = [
    "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
    "/lib/x86_64-linux-gnu/libcuda.so.1",
    "/usr/lib64/libcuda.so.1",
    "/usr/local/nvidia/lib64/libcuda.so.1",
    "/usr/lib/wsl/lib/libcuda.so.1",
];

/// The oldest supported driver. Libraries and context-free kernels need CUDA 12.0 (`cuLibraryLoadData`). Memory at chosen
/// addresses, from descriptors and in pools needs earlier versions.
const OLDEST_DRIVER_VERSION: i32 = 12000;

/// Libraries that NVIDIA's driver loads when it first compiles PTX, unless its cache has the result.
const COMPILER_LIBRARIES: [&str; 2] = ["libnvidia-ptxjitcompiler.so.1", "libnvidia-nvvm.so.4"];

/// An initialized driver library.
#[derive(Debug)]
pub struct OpenLibrary {
    library: ManuallyDrop<Library>,
    path: PathBuf,
    soft: bool,
    devices: u32,
    gpu_error: Option<Box<DriverError>>,
}

impl OpenLibrary {
    /// Returns the name under which the library was loaded.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether this is softcuda, whose device is the CPU.
    pub fn is_soft(&self) -> bool {
        self.soft
    }

    /// Returns the number of devices of the library; at least one.
    pub fn devices(&self) -> u32 {
        self.devices
    }

    /// Returns why `auto` chose softcuda: the error of the GPU's driver. `None` if the operator chose.
    pub fn gpu_error(&self) -> Option<&DriverError> {
        self.gpu_error.as_deref()
    }

    /// Returns the address of an exported function; null if this driver lacks it.
    pub(crate) fn symbol(&self, name: &CStr) -> *mut c_void {
        name.to_str()
            .ok()
            .and_then(|name| symbol(&self.library, name))
            .map_or(std::ptr::null_mut(), <*const ()>::cast_mut)
            .cast()
    }
}

/// Opens the library that `choice` names. `soft` is the path of the installed softcuda, if the caller knows it.
///
/// # Errors
///
/// See [`DriverError`]; no half-open library is left to the caller.
pub fn open(choice: &DriverChoice, soft: Option<&Path>) -> Result<OpenLibrary, DriverError> {
    match choice {
        DriverChoice::Path(path) => open_at(path),
        DriverChoice::Soft => open_soft(soft),
        DriverChoice::Auto => open_gpu().or_else(|gpu| match open_soft(soft) {
            Ok(library) => Ok(OpenLibrary { gpu_error: Some(Box::new(gpu)), ..library }),
            Err(soft) => Err(DriverError::Neither { gpu: Box::new(gpu), soft: Box::new(soft) }),
        }),
    }
}

/// Opens NVIDIA's library: first by the loader's search, then at the usual paths. It skips softcuda and the shim. Of several
/// errors it returns a GPU driver's rather than that of another file.
fn open_gpu() -> Result<OpenLibrary, DriverError> {
    let mut failure = match open_real(Path::new("libcuda.so.1")) {
        Ok(library) => return Ok(library),
        Err(error) => error,
    };
    for path in USUAL_DRIVER_PATHS.iter().map(Path::new).filter(|path| path.exists()) {
        match open_real(path) {
            Ok(library) => return Ok(library),
            Err(error) if error.is_of_a_driver() && !failure.is_of_a_driver() => failure = error,
            Err(_) => {}
        }
    }
    Err(failure)
}

/// Loads the compiler libraries of NVIDIA's driver for good; missing ones are skipped. If a process does so before it opens the
/// driver, its used addresses do not depend on whether anything is compiled. So the driver always has the same addresses to
/// choose from.
pub fn load_compilers() {
    for name in COMPILER_LIBRARIES {
        let usual = USUAL_DRIVER_PATHS.iter().map(|driver| Path::new(driver).with_file_name(name));
        let library = [PathBuf::from(name)].into_iter().chain(usual).find_map(|path| {
            // SAFETY: a library of the driver, whose constructors run as they would later.
            unsafe { unix::Library::open(Some(path), unix::RTLD_LAZY | unix::RTLD_LOCAL) }.ok()
        });
        std::mem::forget(library);
    }
}

/// Opens `path` unless it is softcuda, which `auto` must not take for a GPU.
fn open_real(path: &Path) -> Result<OpenLibrary, DriverError> {
    let library = load(path)?;
    if symbol(&library, SOFT_MARKER).is_some() {
        return Err(DriverError::IsSoft { path: path.to_owned() });
    }
    initialize(library, path)
}

fn open_soft(soft: Option<&Path>) -> Result<OpenLibrary, DriverError> {
    open_at(soft.ok_or(DriverError::NoSoft)?)
}

fn open_at(path: &Path) -> Result<OpenLibrary, DriverError> {
    initialize(load(path)?, path)
}

/// Loads `path` and refuses files that are no driver. Calls no function of the library.
fn load(path: &Path) -> Result<Library, DriverError> {
    // SAFETY: the operator named the file, or it is the system's driver; its constructors run as they would in any program that
    // links it. RTLD_LOCAL keeps its symbols apart from the worker's.
    let library = unsafe { unix::Library::open(Some(path), unix::RTLD_NOW | unix::RTLD_LOCAL) }
        .map_err(|error| DriverError::Load { path: path.to_owned(), reason: error.to_string() })?;
    let library = Library::from(library);
    if symbol(&library, SHIM_MARKER).is_some() {
        return Err(DriverError::OwnShim { path: path.to_owned() });
    }
    Ok(library)
}

/// Calls `cuInit`, queries the version and counts devices.
fn initialize(library: Library, path: &Path) -> Result<OpenLibrary, DriverError> {
    let find = |function| {
        symbol(&library, function).ok_or_else(|| DriverError::NotADriver { path: path.to_owned(), function })
    };
    let [init, version, count] = [find("cuInit")?, find("cuDriverGetVersion")?, find("cuDeviceGetCount")?];
    // SAFETY: in every CUDA driver this symbol has this signature (cuda.h, unchanged since 2.0).
    let init: extern "C" fn(c_uint) -> c_uint = unsafe { std::mem::transmute(init) };
    // SAFETY: as above.
    let version: NumberQuery = unsafe { std::mem::transmute(version) };
    // SAFETY: as above.
    let count: NumberQuery = unsafe { std::mem::transmute(count) };
    let (mut found, mut devices): (c_int, c_int) = (0, 0);
    // First of all, since an old driver may not start at all on a newer GPU.
    // SAFETY: `found` is writable for the call.
    check(unsafe { version(&raw mut found) }, path, "cuDriverGetVersion")?;
    if found < OLDEST_DRIVER_VERSION {
        return Err(DriverError::TooOld { path: path.to_owned(), found, needed: OLDEST_DRIVER_VERSION });
    }
    check(init(0), path, "cuInit")?;
    // SAFETY: `devices` is writable for the call.
    check(unsafe { count(&raw mut devices) }, path, "cuDeviceGetCount")?;
    let soft = symbol(&library, SOFT_MARKER).is_some();
    match u32::try_from(devices) {
        Ok(devices) if devices > 0 => {
            let (library, path) = (ManuallyDrop::new(library), path.to_owned());
            Ok(OpenLibrary { library, path, soft, devices, gpu_error: None })
        }
        _ => Err(DriverError::NoDevice { path: path.to_owned() }),
    }
}

/// A driver function that writes one number.
type NumberQuery = unsafe extern "C" fn(*mut c_int) -> c_uint;

fn check(code: c_uint, path: &Path, function: &'static str) -> Result<(), DriverError> {
    if code == 0 { Ok(()) } else { Err(DriverError::Init { path: path.to_owned(), function, code }) }
}

/// Returns the address of `name`, of data and functions alike; the caller casts it.
fn symbol(library: &Library, name: &str) -> Option<*const ()> {
    // SAFETY: the pointer is only an address here; every caller states the signature where it uses it.
    unsafe { library.get::<*const ()>(name.as_bytes()) }.ok().map(|found| *found).filter(|found| !found.is_null())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_file_is_named_in_the_error() {
        let error = open(&DriverChoice::Path("/no/such/libcuda.so.1".into()), None).unwrap_err();
        assert!(error.to_string().contains("/no/such/libcuda.so.1"), "{error}");
    }

    #[test]
    fn a_library_that_is_no_driver_is_refused() {
        let error = open(&DriverChoice::Path("libm.so.6".into()), None).unwrap_err();
        assert!(matches!(error, DriverError::NotADriver { function: "cuInit", .. }), "{error}");
    }

    #[test]
    fn soft_without_an_installed_softcuda_says_how_to_get_it() {
        let error = open(&DriverChoice::Soft, None).unwrap_err();
        assert!(error.to_string().contains("KATYDID_LIB"), "{error}");
    }
}

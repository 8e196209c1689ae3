//! Finds and opens a driver library.
//!
//! The rule kept here: a library is handed out only after it was proved to be a driver that is not our own program
//! side, and after its `cuInit` succeeded with at least one device. Libraries are never unloaded: a driver keeps
//! threads of its own, and function pointers into it are copied about.

#![expect(unsafe_code, reason = "loading a library and calling two functions of it is foreign code")]

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};

use libloading::Library;
use libloading::os::unix;

use crate::choice::DriverChoice;
use crate::error::DriverError;

/// Exported by the shim alone.
const SHIM_MARKER: &str = "katydid_shim_marker";
/// Exported by softcuda alone.
const SOFT_MARKER: &str = "katydid_softcuda_marker";

/// Where NVIDIA's library lies when the loader's search is bent, for instance by our own `LD_LIBRARY_PATH`.
const USUAL_DRIVER_PATHS: [&str; 5] = [
    "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
    "/lib/x86_64-linux-gnu/libcuda.so.1",
    "/usr/lib64/libcuda.so.1",
    "/usr/local/nvidia/lib64/libcuda.so.1",
    "/usr/lib/wsl/lib/libcuda.so.1",
];

/// The oldest driver that serves: libraries and kernels without a context are of CUDA 12.0 (`cuLibraryLoadData`), memory at
/// addresses of our own, of descriptors and in pools of earlier ones.
const OLDEST_DRIVER_VERSION: i32 = 12000;

/// Libraries that NVIDIA's loads when it first compiles text, unless it finds the outcome in its cache.
const COMPILER_LIBRARIES: [&str; 2] = ["libnvidia-ptxjitcompiler.so.1", "libnvidia-nvvm.so.4"];

/// An initialised driver library.
#[derive(Debug)]
pub struct OpenLibrary {
    library: ManuallyDrop<Library>,
    path: PathBuf,
    soft: bool,
    devices: u32,
    gpu_error: Option<Box<DriverError>>,
}

impl OpenLibrary {
    /// The name the library was loaded by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether this is softcuda, whose device is the CPU.
    pub fn is_soft(&self) -> bool {
        self.soft
    }

    /// Number of devices that the library shows; at least one.
    pub fn devices(&self) -> u32 {
        self.devices
    }

    /// Why `auto` took softcuda: what kept the driver of a GPU from being taken. None where a choice was made.
    pub fn gpu_error(&self) -> Option<&DriverError> {
        self.gpu_error.as_deref()
    }

    /// The address of an exported function, null when this driver does not have it.
    pub(crate) fn symbol(&self, name: &CStr) -> *mut c_void {
        name.to_str()
            .ok()
            .and_then(|name| symbol(&self.library, name))
            .map_or(std::ptr::null_mut(), <*const ()>::cast_mut)
            .cast()
    }
}

/// Opens what `choice` asks for. `soft` is where softcuda is installed, when the caller knows.
///
/// # Errors
///
/// See [`DriverError`]; nothing is left half open that a caller could use.
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

/// NVIDIA's library: the loader's search first, then the usual places. softcuda and the shim are passed over. Of several
/// failures it returns that of a GPU's driver, not that of a file which is not a driver.
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

/// Loads what NVIDIA's driver compiles with, for good; what is not there is left out. A process that does so before it opens
/// the driver has the same addresses in use whether anything is compiled or not, and the driver the same ones to choose from.
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
    initialise(library, path)
}

fn open_soft(soft: Option<&Path>) -> Result<OpenLibrary, DriverError> {
    open_at(soft.ok_or(DriverError::NoSoft)?)
}

fn open_at(path: &Path) -> Result<OpenLibrary, DriverError> {
    initialise(load(path)?, path)
}

/// Loads `path` and refuses what is no driver; no function of it has been called yet.
fn load(path: &Path) -> Result<Library, DriverError> {
    // SAFETY: the operator named the file, or it is the system's driver; its constructors run as they would in any
    // program that links it. RTLD_LOCAL keeps its symbols away from the worker's.
    let library = unsafe { unix::Library::open(Some(path), unix::RTLD_NOW | unix::RTLD_LOCAL) }
        .map_err(|error| DriverError::Load { path: path.to_owned(), reason: error.to_string() })?;
    let library = Library::from(library);
    if symbol(&library, SHIM_MARKER).is_some() {
        return Err(DriverError::OwnShim { path: path.to_owned() });
    }
    Ok(library)
}

/// Calls `cuInit`, asks for the version and counts devices.
fn initialise(library: Library, path: &Path) -> Result<OpenLibrary, DriverError> {
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
    // Before anything else, since an old driver may not start at all on a GPU that is newer.
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

/// A function of the driver's that writes one number.
type NumberQuery = unsafe extern "C" fn(*mut c_int) -> c_uint;

fn check(code: c_uint, path: &Path, function: &'static str) -> Result<(), DriverError> {
    if code == 0 { Ok(()) } else { Err(DriverError::Init { path: path.to_owned(), function, code }) }
}

/// The address of `name`; data and functions alike, so the caller gives it its type.
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

//! Opens the OpenCL drivers of this machine directly, without a loader.
//!
//! `find.rs` locates their libraries. Each library answers `clIcdGetPlatformIDsKHR`, and every object of a driver begins with the
//! address of its function table. A driver's table ends with the OpenCL version that it knows. So it is copied up to that end,
//! and later entries are `None`.

#![expect(unsafe_code, reason = "opens driver libraries and calls them")]

use std::mem::{MaybeUninit, offset_of};
use std::path::Path;
use std::ptr;

use katydid_opencl_sys::constant::{DEVICE_TYPE, DEVICE_TYPE_ALL, DEVICE_TYPE_CPU, PLATFORM_NAME, PLATFORM_VERSION};
use katydid_opencl_sys::{Code, Dispatch, cl_device_id, cl_platform_id, void};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::drivers::find::{self, DRIVERS_VARIABLE, candidates};

/// Only Katydid's own library for programs has this symbol.
const SHIM_MARKER: &[u8] = b"katydid_shim_marker\0";

/// Why there are no devices to serve a program with.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NoDriverError {
    /// No driver answered with a platform.
    #[error(
        "no OpenCL driver works here ({}); install one, such as Debian's pocl-opencl-icd, or name a driver's library in \
         {DRIVERS_VARIABLE}",
        tried.join("; ")
    )]
    NoPlatform {
        /// Each library with its error, and each location that names no library.
        tried: Vec<String>,
    },
    /// All devices are processors, and the program may not use those.
    #[error(
        "the OpenCL drivers here ({}) have processors alone, on which a program's kernels run as the server's user: the \
         server shows them only on its unix socket; `katydid serve --allow-cpu-opencl` shows them on all of its addresses",
        names.join(", ")
    )]
    ProcessorsOnly {
        /// The names of the platforms.
        names: Vec<String>,
    },
}

/// A platform of a driver.
#[derive(Debug, Clone)]
pub struct Platform {
    /// Handle that `clGetPlatformIDs` returned.
    pub(crate) handle: cl_platform_id,
    /// The functions of the platform's driver.
    pub(crate) api: &'static Dispatch,
    /// Its devices, each with its type.
    pub(crate) devices: Vec<(cl_device_id, u64)>,
    /// `CL_PLATFORM_NAME`, as the driver reports it.
    pub name: String,
}

impl Platform {
    /// Returns a platform with its own function table and devices, each with its type: a substitute for a driver in tests.
    ///
    /// # Safety
    ///
    /// Each function of the table must do what OpenCL specifies, for the handles that are given here and those that the functions
    /// make. A handle may be any number but 0: only these functions dereference it.
    #[must_use]
    pub unsafe fn from_table(
        handle: cl_platform_id,
        api: &'static Dispatch,
        devices: Vec<(cl_device_id, u64)>,
        name: String,
    ) -> Self {
        Self { handle, api, devices, name }
    }
}

/// The result of opening the drivers.
#[derive(Debug)]
pub struct OpenedDrivers {
    /// The platforms of all drivers that work; at least one.
    pub platforms: Vec<Platform>,
    /// The libraries that failed, with their errors as text.
    pub tried: Vec<String>,
}

/// Returns whether the operator has chosen the drivers to open.
#[must_use]
pub fn is_chosen() -> bool {
    find::is_chosen()
}

/// Opens all drivers and returns the platforms of those that work.
///
/// # Errors
///
/// No driver works, or none has a device.
pub fn open() -> Result<OpenedDrivers, NoDriverError> {
    let candidates = candidates();
    let (mut platforms, mut tried, mut opened) = (Vec::new(), candidates.empty, Vec::new());
    for path in candidates.libraries {
        let result = load(&path).and_then(|(library, handle)| {
            // One library may have several names: a file's, a link's, the one that the loader knows.
            if opened.contains(&handle) {
                return Ok(Vec::new());
            }
            opened.push(handle);
            platforms_of(library)
        });
        match result {
            Ok(found) => platforms.extend(found),
            // The loader's message begins with the name.
            Err(reason) if reason.starts_with(&*path.to_string_lossy()) => tried.push(reason),
            Err(reason) => tried.push(format!("{}: {reason}", path.display())),
        }
    }
    if platforms.is_empty() { Err(NoDriverError::NoPlatform { tried }) } else { Ok(OpenedDrivers { platforms, tried }) }
}

/// Loads the libraries of all drivers ahead of [`open`], which spends most of its time on that. [`open`] reports the errors.
pub fn load_drivers() {
    for path in candidates().libraries {
        let _ = load(&path);
    }
}

/// Returns the platforms without the devices that run a program's code as a process of this machine.
///
/// # Errors
///
/// [`NoDriverError::ProcessorsOnly`].
pub fn without_processors(platforms: Vec<Platform>) -> Result<Vec<Platform>, NoDriverError> {
    let names = platforms.iter().map(|platform| platform.name.clone()).collect();
    let without = platforms.into_iter().filter_map(|mut platform| {
        platform.devices.retain(|(_, kind)| kind & DEVICE_TYPE_CPU == 0);
        Some(platform).filter(|platform| !platform.devices.is_empty())
    });
    let without: Vec<Platform> = without.collect();
    if without.is_empty() { Err(NoDriverError::ProcessorsOnly { names }) } else { Ok(without) }
}

type GetPlatforms = unsafe extern "C" fn(u32, *mut cl_platform_id, *mut u32) -> i32;
type GetAddress = unsafe extern "C" fn(*const std::ffi::c_char) -> *mut void;

/// Opens a driver, refuses Katydid's own library, and returns the loader's handle as well.
fn load(path: &Path) -> Result<(&'static Library, usize), String> {
    // SAFETY: the machine's administrator, the operator's variable, or its well-known name vouches that the library is an OpenCL
    // driver. Its constructors run in every OpenCL program.
    let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.map_err(|error| error.to_string())?;
    let handle = library.into_raw();
    // SAFETY: the handle is the one of a line above. A driver has threads and exit handlers: it is never closed.
    let library: &Library = Box::leak(Box::new(unsafe { Library::from_raw(handle) }));
    // SAFETY: only the presence of the symbol matters.
    match unsafe { library.get::<*const void>(SHIM_MARKER) } {
        Ok(_) => Err("this is Katydid's own library for programs".to_owned()),
        Err(_) => Ok((library, handle.addr())),
    }
}

/// Asks a driver for its platforms.
fn platforms_of(library: &Library) -> Result<Vec<Platform>, String> {
    let get = get_platforms(library).ok_or("it does not answer clIcdGetPlatformIDsKHR, so it is not an ICD")?;
    let mut count = 0;
    // SAFETY: only a count is requested, into a local.
    Code(unsafe { get(0, ptr::null_mut(), &raw mut count) }).ok().map_err(|code| code.to_string())?;
    let mut handles = vec![cl_platform_id::NULL; count as usize];
    // SAFETY: there is room for `count` handles.
    Code(unsafe { get(count, handles.as_mut_ptr(), ptr::null_mut()) }).ok().map_err(|code| code.to_string())?;
    let platforms: Vec<Platform> = handles.into_iter().filter_map(platform).collect();
    if platforms.is_empty() { Err("it has no device".to_owned()) } else { Ok(platforms) }
}

fn get_platforms(library: &Library) -> Option<GetPlatforms> {
    // SAFETY: the extension cl_khr_icd gives the symbol this signature.
    if let Ok(symbol) = unsafe { library.get::<GetPlatforms>(b"clIcdGetPlatformIDsKHR\0") } {
        return Some(*symbol);
    }
    // SAFETY: OpenCL gives the symbol this signature.
    let find = unsafe { library.get::<GetAddress>(b"clGetExtensionFunctionAddress\0") }.ok()?;
    // SAFETY: the name is a C string.
    let address = unsafe { find(c"clIcdGetPlatformIDsKHR".as_ptr()) };
    // SAFETY: a driver that knows the name answers with a function of this signature, or null.
    unsafe { std::mem::transmute::<*mut void, Option<GetPlatforms>>(address) }
}

/// Returns a platform with its functions and devices; `None` for a platform without devices.
fn platform(handle: cl_platform_id) -> Option<Platform> {
    // SAFETY: a driver's object begins with the address of its table, whose first entries every version has.
    let table = unsafe { *handle.0.cast::<*const Dispatch>() };
    let text = |parameter| {
        // SAFETY: as above; only this entry is read.
        let get = unsafe { (*table).clGetPlatformInfo }?;
        let value = value(|size, out, needed| {
            // SAFETY: `value` gives room for `size` bytes and a local for the size.
            Code(unsafe { get(handle, parameter, size, out, needed) })
        });
        Some(String::from_utf8_lossy(&value.ok()?).trim_end_matches('\0').to_owned())
    };
    let length = table_bytes(&text(PLATFORM_VERSION)?);
    let mut copy = MaybeUninit::<Dispatch>::zeroed();
    // SAFETY: a driver of that version fills in `length` bytes of the table; what follows stays null, which is `None`.
    let api = unsafe {
        ptr::copy_nonoverlapping(table.cast::<u8>(), copy.as_mut_ptr().cast::<u8>(), length);
        &*Box::leak(Box::new(copy.assume_init()))
    };
    let devices = devices(handle, api).ok().filter(|devices| !devices.is_empty())?;
    Some(Platform { handle, api, devices, name: text(PLATFORM_NAME)? })
}

/// Returns how many bytes of the table a driver of a version (`OpenCL 1.2 …`) has.
fn table_bytes(version: &str) -> usize {
    let number = version.strip_prefix("OpenCL ").and_then(|rest| rest.split(' ').next()).unwrap_or_default();
    match number {
        "1.0" => offset_of!(Dispatch, clSetEventCallback),
        "1.1" => offset_of!(Dispatch, clCreateSubDevices),
        "1.2" => offset_of!(Dispatch, clCreateCommandQueueWithProperties),
        "2.0" => offset_of!(Dispatch, clCloneKernel),
        "2.1" => offset_of!(Dispatch, clSetProgramReleaseCallback),
        "2.2" => offset_of!(Dispatch, clCreateBufferWithProperties),
        _ => size_of::<Dispatch>(),
    }
}

fn devices(platform: cl_platform_id, api: &Dispatch) -> Result<Vec<(cl_device_id, u64)>, Code> {
    let get = api.clGetDeviceIDs.ok_or(Code::INVALID_OPERATION)?;
    let mut count = 0;
    // SAFETY: only a count is requested, into a local.
    Code(unsafe { get(platform, DEVICE_TYPE_ALL, 0, ptr::null_mut(), &raw mut count) }).ok()?;
    let mut handles = vec![cl_device_id::NULL; count as usize];
    // SAFETY: there is room for `count` handles.
    Code(unsafe { get(platform, DEVICE_TYPE_ALL, count, handles.as_mut_ptr(), ptr::null_mut()) }).ok()?;
    handles.into_iter().map(|device| Ok((device, kind(device, api)?))).collect()
}

/// Returns the type of a device.
pub(crate) fn kind(device: cl_device_id, api: &Dispatch) -> Result<u64, Code> {
    let get = api.clGetDeviceInfo.ok_or(Code::INVALID_OPERATION)?;
    let mut kind = 0u64;
    // SAFETY: the value has 8 bytes.
    Code(unsafe { get(device, DEVICE_TYPE, 8, (&raw mut kind).cast(), ptr::null_mut()) }).ok()?;
    Ok(kind)
}

/// Returns a property of a device, as its driver reports it.
pub(crate) fn device_value(device: cl_device_id, api: &Dispatch, parameter: u32) -> Result<Vec<u8>, Code> {
    let get = api.clGetDeviceInfo.ok_or(Code::INVALID_OPERATION)?;
    // SAFETY: `value` gives room for `size` bytes and a local for the size.
    value(|size, out, needed| Code(unsafe { get(device, parameter, size, out, needed) }))
}

/// Returns a value of any size: asks for its size first, then for the value.
pub(crate) fn value(get: impl Fn(usize, *mut void, *mut usize) -> Code) -> Result<Vec<u8>, Code> {
    let mut size = 0;
    get(0, ptr::null_mut(), &raw mut size).ok()?;
    let mut bytes = vec![0u8; size];
    if size > 0 {
        get(size, bytes.as_mut_ptr().cast(), ptr::null_mut()).ok()?;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_ends_with_the_version() {
        assert_eq!(table_bytes("OpenCL 3.0 PoCL 3.1 Linux"), size_of::<Dispatch>());
        assert_eq!(table_bytes("OpenCL 1.2 CUDA"), offset_of!(Dispatch, clCreateCommandQueueWithProperties));
        assert!(
            table_bytes("OpenCL 1.0 ") < table_bytes("OpenCL 1.1 ")
                && table_bytes("OpenCL 2.0") < table_bytes("OpenCL 2.2 x")
        );
    }

    #[test]
    fn library_without_the_icd_entry_is_refused_by_name() {
        let (library, handle) = load(Path::new("libm.so.6")).unwrap();
        assert!(platforms_of(library).unwrap_err().contains("clIcdGetPlatformIDsKHR"));
        assert_eq!(load(Path::new("libm.so.6")).unwrap().1, handle);
        let error = NoDriverError::NoPlatform { tried: vec!["x: y".into()] }.to_string();
        assert!(
            error.contains("(x: y)") && error.contains("pocl-opencl-icd") && error.contains(DRIVERS_VARIABLE),
            "{error}"
        );
    }
}

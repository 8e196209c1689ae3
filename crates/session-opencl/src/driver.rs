//! The OpenCL drivers of this machine, opened without a loader in between.
//!
//! A vendors folder holds files of one line: the name of a driver library (`/etc/OpenCL/vendors/*.icd`, or what
//! `OCL_ICD_VENDORS` says; `OCL_ICD_FILENAMES` names libraries outright). Each answers `clIcdGetPlatformIDsKHR`, and
//! every object of a driver begins with the address of its table of functions. A driver's table ends with the version
//! that it knows, so it is copied up to there, and what lies beyond is none.

#![expect(unsafe_code, reason = "opens driver libraries and calls them")]

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::mem::{ManuallyDrop, MaybeUninit, offset_of};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::ptr;

use katydid_opencl_sys::constant::{DEVICE_TYPE, DEVICE_TYPE_ALL, PLATFORM_NAME, PLATFORM_VERSION};
use katydid_opencl_sys::{Code, Dispatch, cl_device_id, cl_platform_id, void};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

/// Where vendors put the names of their libraries.
const VENDORS: &str = "/etc/OpenCL/vendors";
/// NVIDIA's library, which containers often have without its file among the vendors.
const NVIDIA: &str = "libnvidia-opencl.so.1";
/// Only our own library for programs has this symbol.
const SHIM_MARKER: &[u8] = b"katydid_shim_marker\0";

/// Why there is nothing to serve a program with.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DriverError {
    /// No driver answered with a platform.
    #[error(
        "no OpenCL driver works here ({}); install one, such as Debian's pocl-opencl-icd, or name a folder of .icd files \
         in OCL_ICD_VENDORS", if tried.is_empty() { "none is installed".to_owned() } else { tried.join("; ") }
    )]
    NoPlatform {
        /// Each library, and what was wrong with it.
        tried: Vec<String>,
    },
}

/// A platform of a driver.
#[derive(Debug, Clone)]
pub struct Platform {
    /// The driver's object.
    pub(crate) handle: cl_platform_id,
    /// Its functions.
    pub(crate) api: &'static Dispatch,
    /// Its devices, each with its type.
    pub(crate) devices: Vec<(cl_device_id, u64)>,
    /// Its own name.
    pub name: String,
}

/// The platforms of all drivers that work.
///
/// # Errors
///
/// There is none.
pub fn open() -> Result<Vec<Platform>, DriverError> {
    let (mut platforms, mut tried) = (Vec::new(), Vec::new());
    for library in libraries() {
        match platforms_of(&library) {
            Ok(found) => platforms.extend(found),
            Err(reason) => tried.push(format!("{}: {reason}", library.display())),
        }
    }
    if platforms.is_empty() { Err(DriverError::NoPlatform { tried }) } else { Ok(platforms) }
}

/// The libraries to try, each once.
fn libraries() -> Vec<PathBuf> {
    let said = |name| env::var_os(name).filter(|value: &OsString| !value.is_empty());
    let mut found: Vec<PathBuf> =
        said("OCL_ICD_FILENAMES").map(|list| env::split_paths(&list).collect()).unwrap_or_default();
    let vendors = said("OCL_ICD_VENDORS").map_or_else(|| PathBuf::from(VENDORS), PathBuf::from);
    found.extend(named_in(&vendors));
    if vendors == Path::new(VENDORS)
        && !found.iter().any(|path| path.as_os_str().as_bytes().ends_with(NVIDIA.as_bytes()))
    {
        found.extend(installed(NVIDIA).then(|| PathBuf::from(NVIDIA)));
    }
    let mut once = Vec::new();
    for path in found {
        if !once.contains(&path) {
            once.push(path);
        }
    }
    once
}

/// The libraries that a folder of `.icd` files names, or one such file, in the order of the files' names.
fn named_in(vendors: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = match fs::read_dir(vendors) {
        Ok(entries) => entries.flatten().map(|entry| entry.path()).collect(),
        Err(_) => vec![vendors.to_owned()],
    };
    files.retain(|path| path.extension() == Some(OsStr::new("icd")));
    files.sort();
    files
        .iter()
        .filter_map(|file| fs::read(file).ok())
        .map(|text| text.split(|byte| *byte == b'\n').next().unwrap_or_default().trim_ascii().to_vec())
        .filter(|line| !line.is_empty())
        .map(|line| PathBuf::from(OsString::from_vec(line)))
        .collect()
}

/// Whether the loader finds a library by its name.
fn installed(name: &str) -> bool {
    // SAFETY: the library is a driver of this machine, whose constructors run in every OpenCL program.
    unsafe { Library::open(Some(name), RTLD_NOW | RTLD_LOCAL) }.is_ok()
}

type GetPlatforms = unsafe extern "C" fn(u32, *mut cl_platform_id, *mut u32) -> i32;
type GetAddress = unsafe extern "C" fn(*const std::ffi::c_char) -> *mut void;

/// Opens a driver and asks it for its platforms.
fn platforms_of(path: &Path) -> Result<Vec<Platform>, String> {
    // SAFETY: the machine's administrator, or the operator's variable, named the library as an OpenCL driver.
    let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.map_err(|error| error.to_string())?;
    // A driver has threads and exit handlers: it is never closed.
    let library = ManuallyDrop::new(library);
    // SAFETY: only the presence of the symbol matters.
    if unsafe { library.get::<*const void>(SHIM_MARKER) }.is_ok() {
        return Err("this is Katydid's own library for programs".to_owned());
    }
    let get = get_platforms(&library).ok_or("it does not answer clIcdGetPlatformIDsKHR, so it is no ICD")?;
    let mut count = 0;
    // SAFETY: a count alone is asked for, into a local.
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

/// A platform with its functions and devices; none of a platform without devices.
fn platform(handle: cl_platform_id) -> Option<Platform> {
    // SAFETY: a driver's object begins with the address of its table, whose first entries every version has.
    let table = unsafe { *handle.0.cast::<*const Dispatch>() };
    let text = |parameter| {
        // SAFETY: as above; only this entry is read.
        let get = unsafe { (*table).clGetPlatformInfo }?;
        let value = value(|size, place, needed| {
            // SAFETY: `value` gives room for `size` bytes and a local for the size.
            Code(unsafe { get(handle, parameter, size, place, needed) })
        });
        Some(String::from_utf8_lossy(&value.ok()?).trim_end_matches('\0').to_owned())
    };
    let length = known(&text(PLATFORM_VERSION)?);
    let mut copy = MaybeUninit::<Dispatch>::zeroed();
    // SAFETY: a driver of that version fills in `length` bytes of the table; what follows stays null, which is `None`.
    let api = unsafe {
        ptr::copy_nonoverlapping(table.cast::<u8>(), copy.as_mut_ptr().cast::<u8>(), length);
        &*Box::leak(Box::new(copy.assume_init()))
    };
    let devices = devices(handle, api).ok().filter(|devices| !devices.is_empty())?;
    Some(Platform { handle, api, devices, name: text(PLATFORM_NAME)? })
}

/// Bytes of the table that a driver of a version (`OpenCL 1.2 …`) has.
fn known(version: &str) -> usize {
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
    // SAFETY: a count alone is asked for, into a local.
    Code(unsafe { get(platform, DEVICE_TYPE_ALL, 0, ptr::null_mut(), &raw mut count) }).ok()?;
    let mut handles = vec![cl_device_id::NULL; count as usize];
    // SAFETY: there is room for `count` handles.
    Code(unsafe { get(platform, DEVICE_TYPE_ALL, count, handles.as_mut_ptr(), ptr::null_mut()) }).ok()?;
    handles.into_iter().map(|device| Ok((device, kind(device, api)?))).collect()
}

/// The type of a device.
pub(crate) fn kind(device: cl_device_id, api: &Dispatch) -> Result<u64, Code> {
    let get = api.clGetDeviceInfo.ok_or(Code::INVALID_OPERATION)?;
    let mut kind = 0u64;
    // SAFETY: the value has 8 bytes.
    Code(unsafe { get(device, DEVICE_TYPE, 8, (&raw mut kind).cast(), ptr::null_mut()) }).ok()?;
    Ok(kind)
}

/// What a driver says of a device.
pub(crate) fn device_value(device: cl_device_id, api: &Dispatch, parameter: u32) -> Result<Vec<u8>, Code> {
    let get = api.clGetDeviceInfo.ok_or(Code::INVALID_OPERATION)?;
    // SAFETY: `value` gives room for `size` bytes and a local for the size.
    value(|size, place, needed| Code(unsafe { get(device, parameter, size, place, needed) }))
}

/// A value of any size: asked for its size, then for itself.
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
    fn icd_files_name_libraries_in_order() {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in [("b.icd", "libb.so\n"), ("a.icd", " /x/liba.so \nmore"), ("c.txt", "no"), ("d.icd", "\n")]
        {
            fs::write(folder.path().join(name), text).unwrap();
        }
        assert_eq!(named_in(folder.path()), [Path::new("/x/liba.so"), Path::new("libb.so")]);
        assert_eq!(named_in(&folder.path().join("b.icd")), [Path::new("libb.so")]);
        assert!(named_in(Path::new("/no/such")).is_empty());
    }

    #[test]
    fn a_table_ends_with_the_version() {
        assert_eq!(known("OpenCL 3.0 PoCL 3.1 Linux"), size_of::<Dispatch>());
        assert_eq!(known("OpenCL 1.2 CUDA"), offset_of!(Dispatch, clCreateCommandQueueWithProperties));
        assert!(known("OpenCL 1.0 ") < known("OpenCL 1.1 ") && known("OpenCL 2.0") < known("OpenCL 2.2 x"));
    }

    #[test]
    fn what_is_no_driver_is_refused_by_name() {
        assert!(platforms_of(Path::new("libm.so.6")).unwrap_err().contains("clIcdGetPlatformIDsKHR"));
        let error = DriverError::NoPlatform { tried: vec!["x: y".into()] };
        assert!(error.to_string().contains("(x: y)") && error.to_string().contains("pocl-opencl-icd"));
    }
}

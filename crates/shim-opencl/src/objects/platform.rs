//! Platforms: the server's, under their own names. The end of their version strings says that they are reached through Katydid;
//! the standard leaves room for platform-specific text there.
#![expect(unsafe_code, reason = "reads and writes through the pointers of C callers")]

use std::ffi::CStr;
use std::sync::Arc;

use katydid_opencl_sys::constant::{
    PLATFORM_EXTENSIONS, PLATFORM_EXTENSIONS_WITH_VERSION, PLATFORM_ICD_SUFFIX_KHR, PLATFORM_VERSION,
};
use katydid_opencl_sys::{Code, Function, char, cl_platform_id, void};
use katydid_wire::opencl::message::kdclUnloadCompiler;
use katydid_wire::opencl::query;

use crate::ffi::entry::symbol;
use crate::objects::handle::{Base, kind_of_object, make, object};
use crate::objects::info::CachedValues;
use crate::process::session;

/// Text after a platform's own version.
const VERSION_SUFFIX: &str = " (through Katydid)";
/// Bytes of a name in a `cl_name_version`, after its version.
const NAME_VERSION_NAME_BYTES: usize = 64;

/// A platform of the server.
#[derive(Debug)]
pub(crate) struct Platform {
    pub(crate) base: Base,
    cached: CachedValues,
}

kind_of_object! { Platform cl_platform_id PLATFORM INVALID_PLATFORM MAX_DEVICE_HANDLES }

impl Platform {
    pub(crate) fn make() -> Result<Arc<Self>, Code> {
        make(|base| Ok(Self { base, cached: CachedValues::default() }))
    }

    /// Returns the value of a parameter of `clGetPlatformInfo`.
    pub(crate) fn value(&self, parameter: u32) -> Result<Vec<u8>, Code> {
        let ask = || self.cached.ask(query::PLATFORM, self.base.id, parameter);
        Ok(match parameter {
            PLATFORM_ICD_SUFFIX_KHR => b"KATYDID\0".to_vec(),
            PLATFORM_VERSION => marked(ask()?),
            PLATFORM_EXTENSIONS => forwarded(&ask()?),
            PLATFORM_EXTENSIONS_WITH_VERSION => forwarded_versions(&ask()?),
            _ => ask()?,
        })
    }
}

fn marked(mut version: Vec<u8>) -> Vec<u8> {
    version.pop_if(|byte| *byte == 0);
    version.extend_from_slice(VERSION_SUFFIX.as_bytes());
    version.push(0);
    version
}

/// Returns whether an extension is forwarded: those with functions of their own, or with objects of other APIs, are not.
fn is_forwarded(name: &[u8]) -> bool {
    const REFUSED: [&str; 25] = [
        "gl_sharing",
        "gl_event",
        "gl_depth",
        "gl_msaa",
        "d3d10",
        "d3d11",
        "d3d9",
        "dx9",
        "egl",
        "va_api",
        "external_memory",
        "external_semaphore",
        "khr_semaphore",
        "command_buffer",
        "device_fission",
        "suggested_local",
        "terminate_context",
        "unified_shared_memory",
        "buffer_device_address",
        "content_size",
        "import_memory",
        "intel_accelerator",
        "pipe_program",
        "svm_system",
        "cl_nv_create_buffer",
    ];
    let name = String::from_utf8_lossy(name);
    !REFUSED.iter().any(|part| name.contains(part))
}

/// Filters a driver's list of extensions to those that are forwarded.
pub(crate) fn forwarded(list: &[u8]) -> Vec<u8> {
    let list = list.strip_suffix(b"\0").unwrap_or(list);
    let names = list.split(|byte| *byte == b' ').filter(|name| !name.is_empty() && is_forwarded(name));
    let mut text = names.collect::<Vec<_>>().join(&b' ');
    text.push(0);
    text
}

/// Filters a driver's list of versions and names to those that are forwarded.
pub(crate) fn forwarded_versions(list: &[u8]) -> Vec<u8> {
    let name = |entry: &[u8]| entry[4..].split(|byte| *byte == 0).next().unwrap_or_default().to_vec();
    list.chunks_exact(4 + NAME_VERSION_NAME_BYTES)
        .filter(|entry| is_forwarded(&name(entry)))
        .flatten()
        .copied()
        .collect()
}

/// # Safety
///
/// `func_name` is null or a C string.
pub(crate) unsafe fn get_extension_function_address(func_name: *const char) -> Result<*mut void, Code> {
    if func_name.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: a C string by the contract.
    let name = unsafe { CStr::from_ptr(func_name) }.to_bytes();
    let name = if name == b"clGetKernelSubGroupInfoKHR" { b"clGetKernelSubGroupInfo" } else { name };
    let function = Function::ALL.into_iter().find(|function| function.name().as_bytes() == name);
    let function = function.filter(|function| !function.is_refused()).ok_or(Code::INVALID_VALUE)?;
    Ok(symbol(function).cast_mut())
}

/// # Safety
///
/// As [`get_extension_function_address`].
pub(crate) unsafe fn get_extension_function_address_for_platform(
    platform: cl_platform_id,
    func_name: *const char,
) -> Result<*mut void, Code> {
    object::<Platform>(platform)?;
    // SAFETY: guaranteed by the caller.
    unsafe { get_extension_function_address(func_name) }
}

pub(crate) fn unload_platform_compiler(platform: cl_platform_id) -> Result<(), Code> {
    let platform = object::<Platform>(platform)?;
    session::call(&kdclUnloadCompiler { platform: platform.base.id }).map(drop)
}

/// The old form of the hint, without a platform: there is nothing to unload.
pub(crate) fn unload_compiler() -> Result<(), Code> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extensions_that_do_not_go_through_are_left_out() {
        assert_eq!(forwarded(b"cl_khr_fp64 cl_khr_gl_sharing  cl_khr_icd\0"), b"cl_khr_fp64 cl_khr_icd\0");
        let entry = |name: &str| {
            let mut entry = vec![0u8; 4 + NAME_VERSION_NAME_BYTES];
            entry[4..4 + name.len()].copy_from_slice(name.as_bytes());
            entry
        };
        let list = [entry("cl_khr_fp16"), entry("cl_khr_command_buffer")].concat();
        assert_eq!(forwarded_versions(&list), entry("cl_khr_fp16"));
    }

    #[test]
    fn versions_say_that_katydid_is_between() {
        assert_eq!(marked(b"OpenCL 3.0 PoCL 3.1\0".to_vec()), b"OpenCL 3.0 PoCL 3.1 (through Katydid)\0");
    }

    #[test]
    fn functions_are_found_by_name() {
        // SAFETY: C strings, and null.
        unsafe {
            assert!(get_extension_function_address(c"clIcdGetPlatformIDsKHR".as_ptr()).is_ok());
            assert!(get_extension_function_address(c"clCreateFromGLBuffer".as_ptr()).is_err());
            assert!(get_extension_function_address(std::ptr::null()).is_err());
        }
    }
}

//! The functions of a driver library, one method each, generated from `spec/cuda.api`.
//!
//! A method returns the driver's `CUresult` and nothing else. For a function that the library lacks, it returns
//! `CUDA_ERROR_NOT_SUPPORTED` and reports the name.

#![expect(unsafe_code, reason = "calls into the driver library")]
#![allow(
    non_snake_case,
    clippy::too_many_arguments,
    clippy::missing_transmute_annotations,
    clippy::type_complexity,
    reason = "names and parameters are the vendor's; the generated table states each type once, at its field"
)]

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use katydid_cuda_sys as sys;

use crate::error::DriverError;
use crate::open::OpenLibrary;

include!(concat!(env!("OUT_DIR"), "/functions.rs"));

/// An initialized driver and all its functions.
pub struct Driver {
    functions: Functions,
    library: Option<OpenLibrary>,
    /// Missing functions that were called; each is reported once.
    missing: Mutex<BTreeSet<&'static str>>,
}

impl Driver {
    /// Returns the table of an opened library.
    pub fn new(library: OpenLibrary) -> Self {
        // SAFETY: the library was checked to be a CUDA driver, whose symbols have the signatures of the driver API; it is never
        // unloaded, so the addresses stay valid.
        let functions = unsafe { Functions::load(|name| library.symbol(name)) };
        Self { functions, library: Some(library), missing: Mutex::default() }
    }

    /// Makes a table of functions that do not come from a library: a driver made of the caller's own code.
    ///
    /// # Safety
    ///
    /// `find` must return the function that the driver API defines under that name, or null, and the functions must live as long
    /// as the process.
    pub unsafe fn from_functions(find: impl Fn(&CStr) -> *mut sys::void) -> Self {
        // SAFETY: guaranteed by the caller.
        let functions = unsafe { Functions::load(find) };
        Self { functions, library: None, missing: Mutex::default() }
    }

    /// Returns the file from which it was loaded, if there is one.
    pub fn path(&self) -> Option<&Path> {
        self.library.as_ref().map(OpenLibrary::path)
    }

    /// Returns whether this is softcuda, whose device is the CPU.
    pub fn is_soft(&self) -> bool {
        self.library.as_ref().is_some_and(OpenLibrary::is_soft)
    }

    /// Returns why `auto` chose softcuda; `None` if the operator chose it, and with a GPU's driver.
    pub fn gpu_error(&self) -> Option<&DriverError> {
        self.library.as_ref().and_then(OpenLibrary::gpu_error)
    }

    /// Returns a function outside the driver API, which only softcuda has; `None` in any other library. The caller states its
    /// signature.
    pub fn private(&self, name: &CStr) -> Option<*mut sys::void> {
        let library = self.library.as_ref().filter(|library| library.is_soft())?;
        Some(library.symbol(name)).filter(|found| !found.is_null())
    }

    /// Reports a call of a missing function. A worker's standard error is the program's own, so its user reads which function the
    /// GPU's driver is too old for.
    fn missing(&self, name: &'static str) -> sys::CUresult {
        let mut named = self.missing.lock().unwrap_or_else(PoisonError::into_inner);
        if named.insert(name) {
            eprintln!("katydid: the driver library lacks {name}; a newer GPU driver may have it");
        }
        sys::CUresult::ERROR_NOT_SUPPORTED
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn version(out: *mut i32) -> sys::CUresult {
        // SAFETY: the test below passes a local.
        unsafe { out.write(13000) };
        sys::CUresult::SUCCESS
    }

    fn driver() -> Driver {
        let find = |name: &CStr| match name.to_bytes() {
            b"cuDriverGetVersion" => version as *mut sys::void,
            _ => std::ptr::null_mut(),
        };
        // SAFETY: `version` has the signature of `cuDriverGetVersion`.
        unsafe { Driver::from_functions(find) }
    }

    #[test]
    fn a_found_function_is_called() {
        let mut version = 0;
        // SAFETY: the output is a local.
        assert_eq!(unsafe { driver().cuDriverGetVersion(&raw mut version) }, sys::CUresult::SUCCESS);
        assert_eq!(version, 13000);
    }

    #[test]
    fn an_absent_function_is_not_supported_when_called() {
        let driver = driver();
        for _ in 0..2 {
            // SAFETY: the function does not exist, so nothing is called.
            assert_eq!(unsafe { driver.cuCtxSynchronize() }, sys::CUresult::ERROR_NOT_SUPPORTED);
        }
        assert_eq!(driver.missing.lock().unwrap().len(), 1);
    }
}

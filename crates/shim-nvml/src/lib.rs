//! The `libnvidia-ml.so.1` of programs under Katydid: it says that there is no driver on their side.
//!
//! A program's GPU is wherever its server is. The NVML of the machine that the program runs on, if it has one, would tell
//! of other GPUs, and open devices that no checkpoint can keep. So this library stands before it in the search path:
//! whoever starts NVML is told that no driver is loaded, which every program knows how to go on from; PyTorch counts
//! devices through CUDA then. Functions that make no sense without a start are not there.

#![expect(unsafe_code, reason = "exports C symbols")]

use std::ffi::{c_char, c_int, c_uint};

/// `NVML_SUCCESS`.
const SUCCESS: c_int = 0;
/// `NVML_ERROR_UNINITIALIZED`.
const UNINITIALIZED: c_int = 1;
/// `NVML_ERROR_DRIVER_NOT_LOADED`.
const DRIVER_NOT_LOADED: c_int = 9;

/// Starts NVML, as old programs do.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit() -> c_int {
    DRIVER_NOT_LOADED
}

/// Starts NVML.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit_v2() -> c_int {
    DRIVER_NOT_LOADED
}

/// Starts NVML, also without GPUs or without touching them; neither makes a difference here.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlInitWithFlags(_flags: c_uint) -> c_int {
    DRIVER_NOT_LOADED
}

/// Ends NVML, which nobody can have started.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlShutdown() -> c_int {
    UNINITIALIZED
}

/// What a code says; a text that stays.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlErrorString(code: c_int) -> *const c_char {
    let text = match code {
        SUCCESS => c"Success",
        UNINITIALIZED => c"Uninitialized",
        DRIVER_NOT_LOADED => c"Driver Not Loaded",
        _ => c"Unknown Error",
    };
    text.as_ptr()
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    #[test]
    fn every_start_is_refused_in_words() {
        for code in [nvmlInit(), nvmlInit_v2(), nvmlInitWithFlags(1)] {
            // SAFETY: a constant of this library.
            let text = unsafe { CStr::from_ptr(nvmlErrorString(code)) };
            assert_eq!(text, c"Driver Not Loaded");
        }
        assert_eq!(nvmlShutdown(), UNINITIALIZED);
    }
}

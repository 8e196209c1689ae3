//! Texts of NVML's codes.

#![expect(unsafe_code, reason = "exports a C symbol")]

use std::ffi::{CStr, c_char, c_int};

/// Texts of the codes from 0 on, as in NVIDIA's library.
const NVML_ERROR_TEXTS: [&CStr; 28] = [
    c"Success",
    c"Uninitialized",
    c"Invalid Argument",
    c"Not Supported",
    c"Insufficient Permissions",
    c"Already Initialized",
    c"Not Found",
    c"Insufficient Size",
    c"Insufficient External Power",
    c"Driver Not Loaded",
    c"Timeout",
    c"Interrupt Request Issue",
    c"NVML Shared Library Not Found",
    c"Function Not Found",
    c"Corrupted infoROM",
    c"GPU is lost",
    c"GPU requires restart",
    c"The operating system has blocked the request.",
    c"RM has detected an NVML/RM version mismatch.",
    c"GPU is in use",
    c"Insufficient Memory",
    c"No Data",
    c"ECC is enabled on this GPU, so that the operation is not possible",
    c"Insufficient resources",
    c"Frequency not supported",
    c"Argument version mismatch",
    c"Deprecated",
    c"Not Ready",
];

/// Returns the text of a code, which lives forever.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlErrorString(code: c_int) -> *const c_char {
    let text = usize::try_from(code).ok().and_then(|code| NVML_ERROR_TEXTS.get(code));
    text.map_or(c"Unknown Error", |text| text).as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_a_text() {
        let text = |code: c_int| {
            // SAFETY: a constant of this library.
            unsafe { CStr::from_ptr(nvmlErrorString(code)) }
        };
        assert_eq!((text(0), text(9), text(3)), (c"Success", c"Driver Not Loaded", c"Not Supported"));
        assert_eq!((text(-1), text(999)), (c"Unknown Error", c"Unknown Error"));
    }
}

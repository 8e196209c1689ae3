//! The saved state of an OpenCL session, as a restore reads it.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = katydid_session_opencl::parse_state(bytes);
});

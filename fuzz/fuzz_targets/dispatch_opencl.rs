//! Payloads of frames: an OpenCL session executes whatever a program sends.

#![no_main]

#[path = "../bodies/dispatch_opencl.rs"]
mod dispatch_opencl;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    dispatch_opencl::dispatch(bytes);
});

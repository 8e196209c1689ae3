//! Shared memory with arbitrary contents from a program, as the worker reads it.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = katydid_transport::fuzz_entry::ring(bytes);
});

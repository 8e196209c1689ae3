//! Lines between a server and its workers.

#![no_main]

#[path = "../bodies/control.rs"]
mod control;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    control::read(bytes);
});

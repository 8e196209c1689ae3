//! Payloads of frames: a session executes whatever a program sends.

#![no_main]

#[path = "../bodies/dispatch.rs"]
mod dispatch;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    dispatch::dispatch(bytes);
});

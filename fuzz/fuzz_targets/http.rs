//! Requests to the admin API of a server, or to the control socket of a job.

#![no_main]

#[path = "../bodies/http.rs"]
mod http;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    http::ask(bytes);
});

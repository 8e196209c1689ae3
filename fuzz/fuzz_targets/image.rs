//! Module images as files and in their flat form.

#![no_main]

#[path = "../bodies/image.rs"]
mod image;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    image::parse_all(bytes);
});

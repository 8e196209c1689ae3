//! The files of a checkpoint image: image file, packs, manifests; as they are and with hashes made right.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    katydid_image::parse_all(bytes);
});

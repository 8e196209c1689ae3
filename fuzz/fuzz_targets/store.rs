//! The files of a checkpoint image: image file, packs, manifests. The target reads them as they are, and with corrected hashes.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    katydid_image::parse_all(bytes);
});

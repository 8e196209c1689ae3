//! A stream of TLS records that was changed on its way.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    katydid_transport::fuzz_entry::records(bytes);
});

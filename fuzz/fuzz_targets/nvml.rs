//! Questions about devices that a program sends.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Some((opcode, payload)) = bytes.split_first_chunk() {
        let _ = katydid_worker::check_nvml_call(u16::from_le_bytes(*opcode) % 256, payload);
    }
});

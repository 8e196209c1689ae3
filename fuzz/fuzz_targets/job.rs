//! Messages between supervisors and shims: an accepted message is written as it was read.

#![no_main]

use katydid_wire::job::{FromProgram, ToProgram};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    // Corrects the length, or most inputs would end there.
    let mut message = bytes.to_vec();
    if message.len() >= 8 {
        let length = (message.len() as u32).to_le_bytes();
        message[..4].copy_from_slice(&length);
    }
    if let Ok(order) = ToProgram::decode(&message) {
        assert_eq!(order.encode().ok(), Some(message.clone()));
    }
    if let Ok(decoded) = FromProgram::decode(&message) {
        assert_eq!(decoded.encode().ok(), Some(message));
    }
});

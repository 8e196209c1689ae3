//! Handshake messages: an accepted message survives being written and read again.

#![no_main]

use katydid_wire::handshake::{Build, HANDSHAKE_MAGIC, Hello, Ready, Refused};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let build = Build::current([7; 32]);
    // Half of the inputs get a good prefix, or the fuzzer would have to find the hash.
    let mut message = bytes.to_vec();
    if message.len() >= 72 && message[20] == 0 {
        let length = (message.len() as u32).to_le_bytes();
        message[..8].copy_from_slice(&HANDSHAKE_MAGIC);
        message[8..12].copy_from_slice(&length);
        message[16..20].copy_from_slice(&build.protocol.to_le_bytes());
        message[24..56].copy_from_slice(&build.spec_hash);
    }
    if let Ok(hello) = Hello::decode(&message, &build) {
        assert_eq!(hello.encode(&build).and_then(|again| Hello::decode(&again, &build)), Ok(hello));
    }
    if let Ok(ready) = Ready::decode(&message, &build) {
        assert_eq!(ready.encode(&build).and_then(|again| Ready::decode(&again, &build)), Ok(ready));
    }
    if let Ok(refused) = Refused::decode(&message) {
        assert_eq!(refused.encode(&build).and_then(|again| Refused::decode(&again)), Ok(refused));
    }
});

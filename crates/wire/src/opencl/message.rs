//! Messages of an OpenCL session, generated from `spec/opencl-session.api`.

#![allow(non_camel_case_types, non_snake_case, reason = "names follow the spec")]

use crate::codec::{CodecError, Field as _, Message, Reader, Reply};

include!(concat!(env!("OUT_DIR"), "/opencl_message.rs"));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_comes_back_as_it_was() {
        let message = kdclWrite { queue: 3, event: 9, memory: 4, form: 0, staged: 0, blocking: 0, waits: b"abc" };
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        bytes.extend_from_slice(message.tail());
        assert_eq!(kdclWrite::decode(&bytes), Ok(message));
        assert_eq!(message_name(kdclWrite::OPCODE), Some("kdclWrite"));
    }

    /// Every short message, cut and with changed bytes: it is decoded or refused, and never causes a panic.
    #[test]
    fn no_payload_makes_a_decoder_panic() {
        for length in 0..96 {
            for byte in [0, 1, 0x7f, 0xff] {
                let payload = vec![byte; length];
                let _ = kdclInfo::decode(&payload);
                let _ = kdclLaunch::decode(&payload);
                let _ = kdclBuildReply::decode(&payload);
                let _ = kdclInfoReply::decode(&payload);
            }
        }
    }
}

//! Messages from shim to worker, generated from `spec/cuda.api` and `spec/session.api`.
//!
//! Fields carry the vendor's names and travel in the order of the spec line. Handles are ids (0 is null),
//! enumerations 32 bits wide, sizes and addresses 64.

#![allow(non_camel_case_types, non_snake_case, reason = "names are the vendor's")]

use crate::codec::{CodecError, Field as _, Message, Reader, Reply};

include!(concat!(env!("OUT_DIR"), "/message.rs"));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_comes_back_as_it_was() {
        let message = kdCopyIn { destination: 0x2000_0000_0000, stream: 3, data: b"abc" };
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        bytes.extend_from_slice(message.tail());
        assert_eq!(kdCopyIn::decode(&bytes), Ok(message));
    }

    #[test]
    fn a_truncated_message_is_refused() {
        assert!(matches!(kdCopyIn::decode(&[0; 11]), Err(CodecError::Short { message: "kdCopyIn", .. })));
    }

    #[test]
    fn opcodes_name_their_messages() {
        assert_eq!(message_name(kdCopyIn::OPCODE), Some("kdCopyIn"));
        assert_eq!(message_name(0), None);
        assert_eq!(message_name(u16::MAX), None);
    }
}

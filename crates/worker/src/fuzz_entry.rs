//! Fuzzing entry point for untrusted lines of the server.

use crate::control::{ServerMessage, parse};

/// Reads a line that the server may have written. Returns whether it is a known message.
///
/// # Panics
///
/// The message contains text that is not in the line.
pub fn line_of_the_server(bytes: &[u8]) -> bool {
    match parse(bytes) {
        Some(ServerMessage::Give(_, device)) => {
            assert!(bytes.windows(device.len().max(1)).any(|window| window == device.as_bytes()) || device.is_empty());
            true
        }
        Some(ServerMessage::PeersAsked(_) | ServerMessage::Wait(..) | ServerMessage::Answered(_)) => true,
        None => false,
    }
}

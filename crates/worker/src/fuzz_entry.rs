//! Untrusted bytes as lines of the server: what fuzzing drives.

use crate::control::{ServerMessage, parse};

/// Reads a line that the server may have written; whether it says something that is known.
///
/// # Panics
///
/// What it says is no part of what came.
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

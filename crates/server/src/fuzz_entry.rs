//! Fuzzing entry point for untrusted lines of a worker.

use crate::control::{self, Message, name, printable, printable_name};

/// Reads a line that a worker may have written. Returns whether it is a known message.
///
/// # Panics
///
/// The result can control a terminal, or is longer than the input.
pub fn line_of_a_worker(bytes: &[u8]) -> bool {
    let text = printable(bytes);
    assert!(!text.chars().any(char::is_control), "{text:?}");
    assert!(printable_name(&text).chars().count() <= name(&text).chars().count());
    match control::parse(bytes) {
        Message::Warm(detail) | Message::GpuError(detail) | Message::Failed(detail) | Message::Refused(detail) => {
            assert!(text.ends_with(&detail), "{detail:?} is not a part of {text:?}");
            true
        }
        Message::Short { device, .. } => {
            assert!(device.bytes().all(|byte| byte.is_ascii_graphic()), "{device:?}");
            true
        }
        other => other != Message::Unknown,
    }
}

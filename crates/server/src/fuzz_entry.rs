//! Untrusted bytes as lines of a worker: what fuzzing drives.

use crate::control::{self, Message, name, printable, printable_name};

/// Reads a line that a worker may have written; whether it says something that is known.
///
/// # Panics
///
/// What it says could reach a terminal, or is longer than what came.
pub fn line_of_a_worker(bytes: &[u8]) -> bool {
    let text = printable(bytes);
    assert!(!text.chars().any(char::is_control), "{text:?}");
    assert!(printable_name(&text).chars().count() <= name(&text).chars().count());
    match control::parse(bytes) {
        Message::Warm(said) | Message::GpuError(said) | Message::Failed(said) | Message::Refused(said) => {
            assert!(text.ends_with(&said), "{said:?} is not a part of {text:?}");
            true
        }
        Message::Short { device, .. } => {
            assert!(device.bytes().all(|byte| byte.is_ascii_graphic()), "{device:?}");
            true
        }
        other => other != Message::Unknown,
    }
}

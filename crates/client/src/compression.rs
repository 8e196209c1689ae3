//! Whether this program compresses bulk data before it sends it, with the measurements of its link.
//!
//! A process has one session of CUDA's and so one link that this is about. When it moves to another server, what was seen of
//! the link before is soon outweighed.

use std::sync::OnceLock;

use katydid_transport::compression::{CompressionMode, CompressionPolicy};

static CHOSEN_MODE: OnceLock<CompressionMode> = OnceLock::new();

/// Bulk to the server.
pub static RECEIVING_POLICY: CompressionPolicy = CompressionPolicy::new();

/// Bulk from the server, whose compressor is the one that counts there.
pub static SENDING_POLICY: CompressionPolicy = CompressionPolicy::new();

/// What the environment of the process says; the first word counts.
pub(crate) fn choose(packing: CompressionMode) {
    let _ = CHOSEN_MODE.set(packing);
}

/// Whether this program packs bulk.
pub fn compression_mode() -> CompressionMode {
    CHOSEN_MODE.get().copied().unwrap_or(CompressionMode::Off)
}

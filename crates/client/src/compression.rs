//! Whether this program compresses bulk data before it sends it, with the measurements of its link.
//!
//! A process has one CUDA session, and so one link that is measured here. After a move to another server, measurements of the new
//! link soon outweigh the old ones.

use std::sync::OnceLock;

use katydid_transport::compression::{CompressionMode, CompressionPolicy};

static CHOSEN_MODE: OnceLock<CompressionMode> = OnceLock::new();

/// Policy for bulk to the server.
pub static RECEIVING_POLICY: CompressionPolicy = CompressionPolicy::new();

/// Policy for bulk from the server, which measures the server's compressor.
pub static SENDING_POLICY: CompressionPolicy = CompressionPolicy::new();

/// Sets the mode that the process's environment chooses. Only the first call counts.
pub(crate) fn choose(packing: CompressionMode) {
    let _ = CHOSEN_MODE.set(packing);
}

/// Returns whether this program compresses bulk.
pub fn compression_mode() -> CompressionMode {
    CHOSEN_MODE.get().copied().unwrap_or(CompressionMode::Off)
}

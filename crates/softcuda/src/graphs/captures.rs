//! Graphs and captures of this process for streams, without the code that runs graphs.

use std::sync::{Arc, LazyLock};

use katydid_graph::{CaptureStream, Store};

use crate::ffi::Outcome;

static GRAPH_STORE: LazyLock<Arc<Store>> = LazyLock::new(Arc::default);

/// Returns all of them.
pub(crate) fn store() -> Arc<Store> {
    Arc::clone(&GRAPH_STORE)
}

/// Refuses a call that can never be captured, which invalidates a capture of the stream.
pub(crate) fn refuse_captured(stream: CaptureStream) -> Outcome {
    GRAPH_STORE.refuse_captured(stream)
}

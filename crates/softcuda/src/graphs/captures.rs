//! Graphs and captures of this process, as streams know them: without what runs graphs.

use std::sync::{Arc, LazyLock};

use katydid_graph::{CaptureStream, Store};

use crate::ffi::Outcome;

static GRAPH_STORE: LazyLock<Arc<Store>> = LazyLock::new(Arc::default);

/// All that there are.
pub(crate) fn store() -> Arc<Store> {
    Arc::clone(&GRAPH_STORE)
}

/// Refuses what cannot be captured at all, which invalidates a capture that the stream is in.
pub(crate) fn refuse_captured(stream: CaptureStream) -> Outcome {
    GRAPH_STORE.refuse_captured(stream)
}

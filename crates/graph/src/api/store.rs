//! The graphs and captures of a process, without a backend.
//!
//! A driver library's streams sit below its graphs. They ask the store whether a capture is active; everything else goes
//! through [`Graphs`](crate::Graphs), which joins a store with a backend.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use katydid_cuda_sys::CUresult;

use crate::captures::CaptureStream;
use crate::graph::GraphState;
use crate::outcome::Outcome;

/// Pending destructors: address of the function, and its data.
type PendingDestructors = Vec<(usize, usize)>;

/// The graphs and captures of a process.
#[derive(Debug, Default)]
pub struct Store {
    state: Mutex<GraphState>,
    /// Number of active captures, and of events that stand for a place in one: without any, most calls check nothing.
    captures: AtomicUsize,
    /// Number of memory blocks that belong to graphs.
    blocks: AtomicUsize,
}

impl Store {
    /// Runs `body` under the lock. The caller runs the pending destructors.
    pub(crate) fn with<T>(&self, body: impl FnOnce(&mut GraphState) -> T) -> (T, PendingDestructors) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = body(&mut state);
        self.captures.store(state.captures.load(), Ordering::Release);
        self.blocks.store(state.memory.count(), Ordering::Release);
        (answer, state.objects.take_pending_destructors())
    }

    /// Returns whether nothing is captured, and no event was last recorded in a capture.
    pub fn is_quiet(&self) -> bool {
        self.captures.load(Ordering::Acquire) == 0
    }

    /// Returns whether graphs own any memory.
    pub(crate) fn has_blocks(&self) -> bool {
        self.blocks.load(Ordering::Acquire) != 0
    }

    /// Refuses a call that cannot be captured at all, which invalidates the capture.
    ///
    /// # Errors
    ///
    /// 900 in a capture, 901 in an invalidated one, 906 for the legacy default stream.
    pub fn refuse_captured(&self, stream: CaptureStream) -> Outcome {
        if self.is_quiet() {
            return Ok(());
        }
        let refuse = |state: &mut GraphState| {
            if !state.captures.is_captured(stream)? {
                return Ok(());
            }
            state.captures.invalidate_of(stream.key);
            Err(CUresult::ERROR_STREAM_CAPTURE_UNSUPPORTED)
        };
        // Neither a query of captures nor an invalidation ends an object, so no destructor is pending.
        self.with(refuse).0
    }
}

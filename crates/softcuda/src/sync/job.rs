//! A piece of work in a stream: what to run, and after what.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use katydid_cuda_sys::CUresult;

use crate::context::contexts::Context;
use crate::ffi::Outcome;
use crate::sync::stream::Stream;

/// What runs when a job's turn comes. An error sticks to the context.
type Work = Box<dyn FnOnce(&Context) -> Outcome + Send>;

/// One job.
pub(crate) struct Job {
    work: Work,
    /// Runs in a failed context too: others wait for it.
    always: bool,
    /// So short that the submitting thread may run it when nothing is before it.
    pub(crate) short: bool,
    /// Points of other streams that must be reached first.
    pub(crate) after: Vec<(Arc<Stream>, u64)>,
}

impl Job {
    /// Work that a failed context skips: kernels, copies, fills, host functions.
    pub(crate) fn new(work: impl FnOnce(&Context) -> Outcome + Send + 'static) -> Self {
        Self { work: Box::new(work), always: false, short: false, after: Vec::new() }
    }

    /// Work that happens whatever came before: marks of events, status callbacks.
    pub(crate) fn always(work: impl FnOnce(&Context) -> Outcome + Send + 'static) -> Self {
        Self { always: true, ..Self::new(work) }
    }

    /// As short as a few stores.
    pub(crate) fn short(self) -> Self {
        Self { short: true, ..self }
    }

    /// Waits for the points it must come after, then runs.
    pub(crate) fn run(self, context: &Context) {
        for (stream, ticket) in self.after {
            stream.wait(ticket);
        }
        if self.always || context.healthy().is_ok() {
            // A job that panics is a defect of ours; the stream goes on behind it, and the context has failed.
            let outcome = catch_unwind(AssertUnwindSafe(|| (self.work)(context)));
            if let Err(code) = outcome.unwrap_or(Err(CUresult::ERROR_UNKNOWN)) {
                context.fail(code);
            }
        }
    }
}

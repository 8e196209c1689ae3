//! A piece of work in a stream.

use std::panic::{AssertUnwindSafe, catch_unwind};

use katydid_cuda_sys::CUresult;

use crate::context::state::Context;
use crate::ffi::Outcome;

/// What runs when a job's turn comes. An error sticks to the context.
type JobWork = Box<dyn FnOnce(&Context) -> Outcome + Send>;

/// A job of a stream.
pub(crate) struct StreamJob {
    work: JobWork,
    /// Runs in a failed context too: others wait for it.
    always: bool,
    /// So short that the submitting thread may run it when nothing is before it.
    pub(crate) short: bool,
}

impl StreamJob {
    /// Work that a failed context skips: kernels, copies, fills, host functions.
    pub(crate) fn new(work: impl FnOnce(&Context) -> Outcome + Send + 'static) -> Self {
        Self { work: Box::new(work), always: false, short: false }
    }

    /// Work that happens whatever came before: marks of events, status callbacks.
    pub(crate) fn always(work: impl FnOnce(&Context) -> Outcome + Send + 'static) -> Self {
        Self { always: true, ..Self::new(work) }
    }

    /// As short as a few stores.
    pub(crate) fn short(self) -> Self {
        Self { short: true, ..self }
    }

    /// Runs the work, unless the context has failed.
    pub(crate) fn run(self, context: &Context) {
        if self.always || context.healthy().is_ok() {
            // A job that panics is a defect of softcuda; the stream goes on behind it, and the context has failed.
            let outcome = catch_unwind(AssertUnwindSafe(|| (self.work)(context)));
            if let Err(code) = outcome.unwrap_or(Err(CUresult::ERROR_UNKNOWN)) {
                context.fail(code);
            }
        }
    }
}

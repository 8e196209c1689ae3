//! A piece of work in a stream.

use std::panic::{AssertUnwindSafe, catch_unwind};

use katydid_cuda_sys::CUresult;

use crate::context::state::Context;
use crate::ffi::Outcome;

/// The work of a job. An error sticks to the context.
type JobWork = Box<dyn FnOnce(&Context) -> Outcome + Send>;

/// A job of a stream.
pub(crate) struct StreamJob {
    work: JobWork,
    /// Whether it runs in a failed context too, because others wait for it.
    always: bool,
    /// Whether it is so short that the submitting thread may run it when the stream is idle.
    pub(crate) short: bool,
}

impl StreamJob {
    /// Returns a job that a failed context skips: a kernel, copy, fill or host function.
    pub(crate) fn new(work: impl FnOnce(&Context) -> Outcome + Send + 'static) -> Self {
        Self { work: Box::new(work), always: false, short: false }
    }

    /// Returns a job that always runs: marks of events, status callbacks.
    pub(crate) fn always(work: impl FnOnce(&Context) -> Outcome + Send + 'static) -> Self {
        Self { always: true, ..Self::new(work) }
    }

    /// Declares the job as short as a few stores.
    pub(crate) fn short(self) -> Self {
        Self { short: true, ..self }
    }

    /// Runs the work, unless the context has failed.
    pub(crate) fn run(self, context: &Context) {
        if self.always || context.healthy().is_ok() {
            // A panic in a job is a bug of softcuda. The context fails, and the stream goes on.
            let outcome = catch_unwind(AssertUnwindSafe(|| (self.work)(context)));
            if let Err(code) = outcome.unwrap_or(Err(CUresult::ERROR_UNKNOWN)) {
                context.fail(code);
            }
        }
    }
}

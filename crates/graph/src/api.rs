//! All graphs of a process, and the interface for the rest of a driver library.
//!
//! Nothing here calls the program or waits for a GPU while the lock is held.

mod captures;
mod execs;
mod graphs;
mod memory;
mod nodes;
mod params;
mod raw;
mod store;
mod update;

use std::sync::Arc;

use katydid_cuda_sys::{CUevent, CUstream};

use crate::backend::Backend;
use crate::captures::{CaptureOutcome, CaptureStream, StreamKey};
use crate::graph::GraphState;
use crate::legality::UncapturedCall;
use crate::outcome::Outcome;
use crate::params::Params;
use crate::plan::Plan;

pub use store::Store;

/// The graphs and captures of a process.
#[derive(Debug)]
pub struct Graphs<B> {
    pub(crate) backend: B,
    store: Arc<Store>,
}

impl<B: Backend> Graphs<B> {
    /// Makes an API without graphs over this driver library.
    pub fn new(backend: B) -> Self {
        Self::with_store(backend, Arc::default())
    }

    /// Makes an API over the graphs of a store.
    pub fn with_store(backend: B, store: Arc<Store>) -> Self {
        Self { backend, store }
    }

    /// Runs `body` under the lock; pending destructors run after it.
    pub(crate) fn with<T>(&self, body: impl FnOnce(&mut GraphState) -> T) -> T {
        let (answer, destructors) = self.store.with(body);
        destructors.into_iter().for_each(|(function, data)| self.backend.destruct(function, data));
        answer
    }

    /// As [`Graphs::with`], for a body that may fail.
    pub(crate) fn ask<T>(&self, body: impl FnOnce(&mut GraphState) -> Outcome<T>) -> Outcome<T> {
        self.with(body)
    }

    /// Returns whether nothing is captured, and no event was last recorded in a capture.
    pub fn is_quiet(&self) -> bool {
        self.store.is_quiet()
    }

    /// Refuses a call that a capture forbids.
    ///
    /// # Errors
    ///
    /// 900 or 906; the capture is invalidated.
    pub fn forbid(&self, call: UncapturedCall) -> Outcome {
        if self.is_quiet() { Ok(()) } else { self.ask(|state| state.captures.forbid(call)) }
    }

    /// Returns whether a call in this stream would be captured.
    ///
    /// # Errors
    ///
    /// 901 in a invalidated capture, 906 for the legacy default stream.
    pub fn is_captured(&self, stream: CaptureStream) -> Outcome<bool> {
        if self.is_quiet() { Ok(false) } else { self.ask(|state| state.captures.is_captured(stream)) }
    }

    /// Adds an operation to the graph that its stream is captured into, if it is. `make` checks the operation.
    ///
    /// # Errors
    ///
    /// The error of `make`; 901 in an invalidated capture, 906 for the legacy default stream.
    pub fn take(&self, stream: CaptureStream, make: impl FnOnce() -> Outcome<Params>) -> Outcome<CaptureOutcome> {
        if !self.is_captured(stream)? {
            return Ok(CaptureOutcome::No);
        }
        let params = make()?;
        self.ask(|state| state.take(stream.key, params)).map(|_| CaptureOutcome::Yes)
    }

    /// Runs an operation in a stream that is not captured, as a graph of its own, which no other caller sees.
    ///
    /// # Errors
    ///
    /// The error of the backend.
    pub fn run_once(&self, params: Params, stream: CUstream) -> Outcome {
        let number = self.ask(GraphState::new_id)?;
        self.backend.run_once(number, &Arc::new(Plan::of(number, params)), stream)
    }

    /// As [`Graphs::take`]; an operation that cannot be captured invalidates the capture.
    ///
    /// # Errors
    ///
    /// As [`Graphs::take`].
    pub fn take_or_invalidate(
        &self,
        stream: CaptureStream,
        make: impl FnOnce() -> Outcome<Params>,
    ) -> Outcome<CaptureOutcome> {
        self.take(stream, || make().inspect_err(|_| self.with(|state| state.captures.invalidate_of(stream.key))))
    }

    /// Refuses a call that cannot be captured at all, which invalidates the capture.
    ///
    /// # Errors
    ///
    /// As [`Store::refuse_captured`].
    pub fn refuse_captured(&self, stream: CaptureStream) -> Outcome {
        self.store.refuse_captured(stream)
    }

    /// Records an event in a stream.
    ///
    /// # Errors
    ///
    /// As [`Graphs::take`].
    pub fn record(&self, event: CUevent, stream: CaptureStream, is_external: bool) -> Outcome<CaptureOutcome> {
        if self.is_quiet() {
            return Ok(CaptureOutcome::No);
        }
        if is_external && self.is_captured(stream)? {
            return self.take(stream, || Ok(Params::RecordEvent(event)));
        }
        self.ask(|state| state.captures.record(event.0.addr(), stream))
    }

    /// Makes a stream wait for an event; `was_recorded` tells whether it ever was recorded, outside of captures.
    ///
    /// # Errors
    ///
    /// 902 if captures would meet, 905 if a captured stream would wait for one that is not, and as [`Graphs::take`].
    pub fn wait(
        &self,
        event: CUevent,
        stream: CaptureStream,
        is_external: bool,
        was_recorded: bool,
    ) -> Outcome<CaptureOutcome> {
        if self.is_quiet() {
            return Ok(CaptureOutcome::No);
        }
        if is_external && self.is_captured(stream)? {
            return self.take(stream, || Ok(Params::WaitEvent(event)));
        }
        self.ask(|state| state.captures.wait(event.0.addr(), stream, was_recorded))
    }

    /// Refuses to query or wait for an event that was last recorded in a capture.
    ///
    /// # Errors
    ///
    /// 907 while the capture lasts, 1 afterwards.
    pub fn check_event(&self, event: CUevent) -> Outcome {
        if self.is_quiet() { Ok(()) } else { self.ask(|state| state.captures.check_event(event.0.addr())) }
    }

    /// Forgets an event whose handle has ended.
    pub fn forget_event(&self, event: CUevent) {
        if !self.is_quiet() {
            self.with(|state| state.captures.forget_event(event.0.addr()));
        }
    }

    /// Forgets a stream whose handle has ended.
    pub fn forget_stream(&self, key: StreamKey) {
        if !self.is_quiet() {
            self.with(|state| state.forget_stream(key));
        }
    }

    /// Frees an address for the program; returns true if it was memory of a graph.
    ///
    /// # Errors
    ///
    /// `ERROR_INVALID_VALUE` for memory of a graph that is not allocated.
    pub fn free(&self, address: u64) -> Outcome<bool> {
        if !self.store.has_blocks() {
            return Ok(false);
        }
        self.ask(|state| state.memory.free(address))
    }
}

//! All graphs of a process, and what the rest of a driver library asks of them.
//!
//! Nothing here calls the program back or waits for a GPU while the lock is held.

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
    /// Creates an API without graphs over this driver library.
    pub fn new(backend: B) -> Self {
        Self::with_store(backend, Arc::default())
    }

    /// The graphs of a store.
    pub fn with_store(backend: B, store: Arc<Store>) -> Self {
        Self { backend, store }
    }

    /// Runs `body` under the lock; destructors that came due run after it.
    pub(crate) fn with<T>(&self, body: impl FnOnce(&mut GraphState) -> T) -> T {
        let (answer, destructors) = self.store.with(body);
        destructors.into_iter().for_each(|(function, data)| self.backend.destruct(function, data));
        answer
    }

    /// As [`Graphs::with`], for what may fail.
    pub(crate) fn ask<T>(&self, body: impl FnOnce(&mut GraphState) -> Outcome<T>) -> Outcome<T> {
        self.with(body)
    }

    /// Nothing is captured, and no event was last recorded in a capture.
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

    /// Whether a call in this stream would be captured.
    ///
    /// # Errors
    ///
    /// 901 in a invalidated capture, 906 for the legacy default stream.
    pub fn is_captured(&self, stream: CaptureStream) -> Outcome<bool> {
        if self.is_quiet() { Ok(false) } else { self.ask(|state| state.captures.is_captured(stream)) }
    }

    /// Puts an operation into the graph that its stream is captured into, if it is. `make` checks it.
    ///
    /// # Errors
    ///
    /// What `make` says; 901 in a invalidated capture, 906 for the legacy default stream.
    pub fn take(&self, stream: CaptureStream, make: impl FnOnce() -> Outcome<Params>) -> Outcome<CaptureOutcome> {
        if !self.is_captured(stream)? {
            return Ok(CaptureOutcome::No);
        }
        let params = make()?;
        self.ask(|state| state.take(stream.key, params)).map(|_| CaptureOutcome::Yes)
    }

    /// Has a stream that is not captured come to an operation as to a graph of that alone, which no other caller sees.
    ///
    /// # Errors
    ///
    /// What the backend says.
    pub fn run_once(&self, params: Params, stream: CUstream) -> Outcome {
        let number = self.ask(GraphState::new_id)?;
        self.backend.run_once(number, &Arc::new(Plan::of(number, params)), stream)
    }

    /// As [`Graphs::take`]; what cannot be captured invalidates the capture.
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

    /// Refuses what cannot be captured at all, which invalidates the capture.
    ///
    /// # Errors
    ///
    /// As [`Store::refuse_captured`].
    pub fn refuse_captured(&self, stream: CaptureStream) -> Outcome {
        self.store.refuse_captured(stream)
    }

    /// An event is recorded in a stream.
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

    /// A stream waits for an event; `was_recorded` says whether it ever was, outside of captures.
    ///
    /// # Errors
    ///
    /// 902 when captures would meet, 905 when a captured stream would wait for one that is not, and as [`Graphs::take`].
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

    /// Refuses to ask or wait for an event that was last recorded in a capture.
    ///
    /// # Errors
    ///
    /// 907 while the capture lasts, 1 afterwards.
    pub fn check_event(&self, event: CUevent) -> Outcome {
        if self.is_quiet() { Ok(()) } else { self.ask(|state| state.captures.check_event(event.0.addr())) }
    }

    /// An event's handle has ended.
    pub fn forget_event(&self, event: CUevent) {
        if !self.is_quiet() {
            self.with(|state| state.captures.forget_event(event.0.addr()));
        }
    }

    /// A stream's handle has ended.
    pub fn forget_stream(&self, key: StreamKey) {
        if !self.is_quiet() {
            self.with(|state| state.forget_stream(key));
        }
    }

    /// The program frees an address: true if it was memory of a graph, and is free now.
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

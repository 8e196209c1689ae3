//! Stream capture: the streams of each capture, and the nodes on which each stream's next node depends.
//!
//! A capture begins in one stream. Others join when they wait for an event that was recorded in it, and must be joined again
//! before it ends. An error on the way invalidates the capture: every later call in it gives 901, and so does its end, after
//! which the streams are free again.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use katydid_cuda_sys::{CUgraphEdgeData, CUresult, capture_status};

use crate::handles::{GraphId, NodeId};
use crate::outcome::Outcome;

/// A number that no other stream of the process has.
pub type StreamKey = u64;

/// A stream, with its properties for captures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CaptureStream {
    /// Number that identifies the stream in this process.
    pub key: StreamKey,
    /// Whether it is the legacy default stream, which cannot be captured.
    pub is_legacy: bool,
    /// Whether the legacy default stream waits for it.
    pub is_blocking: bool,
    /// Handle of its context.
    pub context: usize,
}

/// Whether an operation went into a graph instead of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureOutcome {
    /// The stream is not captured: the operation has to be executed.
    No,
    /// The operation has become a node of the captured graph.
    Yes,
}

/// Nodes on which the next one depends.
pub(crate) type CaptureDependencies = Vec<(NodeId, CUgraphEdgeData)>;

/// An active stream capture.
#[derive(Debug)]
pub(crate) struct Capture {
    pub(crate) id: u64,
    pub(crate) graph: GraphId,
    /// Whether the graph existed before, and outlives the capture.
    pub(crate) to_graph: bool,
    /// The stream in which it began, which must end it.
    pub(crate) origin: StreamKey,
    pub(crate) mode: u32,
    pub(crate) thread: u64,
    pub(crate) is_valid: bool,
    /// Its streams, and the dependencies of the next node in each.
    pub(crate) streams: HashMap<StreamKey, (CaptureStream, CaptureDependencies)>,
}

/// All active captures, and events last recorded in one.
#[derive(Debug, Default)]
pub(crate) struct Captures {
    pub(crate) all: HashMap<u64, Capture>,
    pub(crate) by_stream: HashMap<StreamKey, u64>,
    /// By handle: the capture, which may have ended, and the dependencies at the record.
    events: HashMap<usize, (u64, CaptureDependencies)>,
    pub(crate) last: u64,
}

/// Returns a number for the calling thread.
pub(crate) fn this_thread() -> u64 {
    static NEXT_THREAD_NUMBER: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        static NUMBER: Cell<u64> = const { Cell::new(0) };
    }
    let number = NUMBER.try_with(|number| {
        if number.get() == 0 {
            number.set(NEXT_THREAD_NUMBER.fetch_add(1, Ordering::Relaxed));
        }
        number.get()
    });
    // A thread that is ending has no captures of its own.
    number.unwrap_or(0)
}

impl Capture {
    /// Returns whether one of its streams belongs to a context.
    pub(crate) fn is_in(&self, context: usize) -> bool {
        self.streams.values().any(|(stream, _)| stream.context == context)
    }
}

impl Captures {
    /// Returns the number of captures and of their events; 0 if no call needs a check.
    pub(crate) fn load(&self) -> usize {
        self.all.len() + self.events.len()
    }

    /// Returns the capture that a stream is in.
    pub(crate) fn of(&self, key: StreamKey) -> Option<&Capture> {
        self.all.get(self.by_stream.get(&key)?)
    }

    pub(crate) fn of_mut(&mut self, key: StreamKey) -> Option<&mut Capture> {
        self.all.get_mut(self.by_stream.get(&key)?)
    }

    /// Returns the dependencies of a captured stream's next node.
    pub(crate) fn dependencies_mut(&mut self, key: StreamKey) -> Option<&mut CaptureDependencies> {
        self.of_mut(key)?.streams.get_mut(&key).map(|(_, dependencies)| dependencies)
    }

    pub(crate) fn dependencies(&self, key: StreamKey) -> Option<&CaptureDependencies> {
        self.of(key)?.streams.get(&key).map(|(_, dependencies)| dependencies)
    }

    /// Invalidates every capture that `which` selects; returns whether there was one.
    pub(crate) fn invalidate(&mut self, which: impl Fn(&Capture) -> bool) -> bool {
        let mut any = false;
        for capture in self.all.values_mut().filter(|capture| which(capture)) {
            capture.is_valid = false;
            any = true;
        }
        any
    }

    /// Returns whether a capture has a stream that the legacy default stream of `context` would wait for.
    fn is_implicit(capture: &Capture, context: usize) -> bool {
        capture.streams.values().any(|(stream, _)| stream.is_blocking && stream.context == context)
    }

    /// Refuses the legacy default stream while a blocking stream of its context is captured.
    pub(crate) fn check_legacy(&mut self, stream: CaptureStream, invalidates: bool) -> Outcome {
        let implicit = |capture: &Capture| Self::is_implicit(capture, stream.context);
        let is_blocked = stream.is_legacy && self.all.values().any(implicit);
        if is_blocked && invalidates {
            self.invalidate(implicit);
        }
        if is_blocked { Err(CUresult::ERROR_STREAM_CAPTURE_IMPLICIT) } else { Ok(()) }
    }

    /// Returns the status of a stream's capture as the driver API numbers it.
    pub(crate) fn status(&self, key: StreamKey) -> u32 {
        match self.of(key) {
            None => capture_status::NONE,
            Some(capture) if capture.is_valid => capture_status::ACTIVE,
            Some(_) => capture_status::INVALIDATED,
        }
    }

    /// Returns whether an operation in this stream is captured.
    pub(crate) fn is_captured(&mut self, stream: CaptureStream) -> Outcome<bool> {
        self.check_legacy(stream, true)?;
        match self.status(stream.key) {
            capture_status::NONE => Ok(false),
            capture_status::ACTIVE => Ok(true),
            _ => Err(CUresult::ERROR_STREAM_CAPTURE_INVALIDATED),
        }
    }

    /// Invalidates the capture of a stream, for an operation that cannot be captured.
    pub(crate) fn invalidate_of(&mut self, key: StreamKey) {
        if let Some(capture) = self.of_mut(key) {
            capture.is_valid = false;
        }
    }

    /// Returns the capture in which an event was last recorded: `Some(None)` if it has ended.
    fn of_event(&self, event: usize) -> Option<Option<&Capture>> {
        self.events.get(&event).map(|(capture, _)| self.all.get(capture))
    }

    /// Refuses to query or wait for an event that was last recorded in a capture, and invalidates that.
    pub(crate) fn check_event(&mut self, event: usize) -> Outcome {
        match self.of_event(event).map(|capture| capture.map(|capture| capture.id)) {
            None => Ok(()),
            Some(None) => Err(CUresult::ERROR_INVALID_VALUE),
            Some(Some(id)) => {
                self.invalidate(|capture| capture.id == id);
                Err(CUresult::ERROR_CAPTURED_EVENT)
            }
        }
    }

    /// Records an event in a stream: it then stands for a place in a capture, or no longer for any.
    pub(crate) fn record(&mut self, event: usize, stream: CaptureStream) -> Outcome<CaptureOutcome> {
        if !self.is_captured(stream)? {
            self.events.remove(&event);
            return Ok(CaptureOutcome::No);
        }
        let capture = self.by_stream.get(&stream.key).copied().unwrap_or_default();
        let dependencies = self.dependencies(stream.key).cloned().unwrap_or_default();
        self.events.insert(event, (capture, dependencies));
        Ok(CaptureOutcome::Yes)
    }

    /// Makes a stream wait for an event. `was_recorded`: at any time, outside of captures.
    pub(crate) fn wait(&mut self, event: usize, stream: CaptureStream, was_recorded: bool) -> Outcome<CaptureOutcome> {
        let Some((id, dependencies)) = self.events.get(&event).cloned() else {
            if !self.is_captured(stream)? {
                return Ok(CaptureOutcome::No);
            }
            if was_recorded {
                self.invalidate_of(stream.key);
                return Err(CUresult::ERROR_STREAM_CAPTURE_ISOLATION);
            }
            return Ok(CaptureOutcome::Yes);
        };
        if stream.is_legacy {
            self.invalidate(|capture| capture.id == id);
            return Err(CUresult::ERROR_STREAM_CAPTURE_IMPLICIT);
        }
        let Some(capture) = self.all.get(&id) else {
            self.invalidate_of(stream.key);
            return Err(CUresult::ERROR_INVALID_VALUE);
        };
        if !capture.is_valid {
            return Err(CUresult::ERROR_STREAM_CAPTURE_INVALIDATED);
        }
        match self.by_stream.get(&stream.key).copied() {
            Some(own) if own != id => {
                self.invalidate(|capture| capture.id == id || capture.id == own);
                Err(CUresult::ERROR_STREAM_CAPTURE_MERGE)
            }
            _ => {
                self.join(id, stream, &dependencies);
                Ok(CaptureOutcome::Yes)
            }
        }
    }

    /// Adds a stream to a capture: its next node also depends on `dependencies`.
    fn join(&mut self, id: u64, stream: CaptureStream, dependencies: &CaptureDependencies) {
        self.by_stream.insert(stream.key, id);
        let Some(capture) = self.all.get_mut(&id) else { return };
        let (_, own) = capture.streams.entry(stream.key).or_insert_with(|| (stream, Vec::new()));
        for edge in dependencies {
            if !own.iter().any(|(node, _)| *node == edge.0) {
                own.push(*edge);
            }
        }
    }

    /// Forgets an event whose handle has ended, or which was recorded elsewhere.
    pub(crate) fn forget_event(&mut self, event: usize) {
        self.events.remove(&event);
    }

    /// Removes a capture, and frees its streams.
    pub(crate) fn close(&mut self, id: u64) -> Option<Capture> {
        self.by_stream.retain(|_, capture| *capture != id);
        self.all.remove(&id)
    }
}

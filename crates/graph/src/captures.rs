//! Stream capture: which streams are in which capture, and on which nodes the next node of each stream depends.
//!
//! A capture begins in one stream. Others join when they wait for an event that was recorded in it, and must have been
//! joined again before it ends. What goes wrong on the way invalidates the capture: every later call in it gives 901,
//! and so does its end, after which the streams are free again.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use katydid_cuda_sys::{CUgraphEdgeData, CUresult, capture_status};

use crate::handles::{GraphId, NodeId};
use crate::outcome::Outcome;

/// A number that no other stream of the process has.
pub type StreamKey = u64;

/// A stream, as far as capture tells them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CaptureStream {
    /// Number that identifies the stream in this process.
    pub key: StreamKey,
    /// It is the legacy default stream, which cannot be captured.
    pub is_legacy: bool,
    /// The legacy default stream waits for it.
    pub is_blocking: bool,
    /// Handle of its context.
    pub context: usize,
}

/// Whether an operation went into a graph instead of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureOutcome {
    /// The stream is not captured: the operation is to be carried out.
    No,
    /// The operation has become a node of the graph that is captured.
    Yes,
}

/// Nodes that the next one depends on.
pub(crate) type CaptureDependencies = Vec<(NodeId, CUgraphEdgeData)>;

/// A stream capture that is under way.
#[derive(Debug)]
pub(crate) struct Capture {
    pub(crate) id: u64,
    pub(crate) graph: GraphId,
    /// The graph was there before, and stays whatever comes of the capture.
    pub(crate) to_graph: bool,
    /// The stream it began in, which must end it.
    pub(crate) origin: StreamKey,
    pub(crate) mode: u32,
    pub(crate) thread: u64,
    pub(crate) is_valid: bool,
    /// Its streams, and the dependencies of the next node in each.
    pub(crate) streams: HashMap<StreamKey, (CaptureStream, CaptureDependencies)>,
}

/// All captures that are under way, and events last recorded in one.
#[derive(Debug, Default)]
pub(crate) struct Captures {
    pub(crate) all: HashMap<u64, Capture>,
    pub(crate) by_stream: HashMap<StreamKey, u64>,
    /// By handle: the capture, which may have ended, and where it stood.
    events: HashMap<usize, (u64, CaptureDependencies)>,
    pub(crate) last: u64,
}

/// A number for the calling thread.
pub(crate) fn this_thread() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        static NUMBER: Cell<u64> = const { Cell::new(0) };
    }
    let number = NUMBER.try_with(|number| {
        if number.get() == 0 {
            number.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        number.get()
    });
    // A thread that is ending has no captures of its own.
    number.unwrap_or(0)
}

impl Capture {
    /// Whether one of its streams is of a context.
    pub(crate) fn is_in(&self, context: usize) -> bool {
        self.streams.values().any(|(stream, _)| stream.context == context)
    }
}

impl Captures {
    /// Captures and events of captures; 0: nothing here concerns a call.
    pub(crate) fn load(&self) -> usize {
        self.all.len() + self.events.len()
    }

    /// The capture that a stream is in.
    pub(crate) fn of(&self, key: StreamKey) -> Option<&Capture> {
        self.all.get(self.by_stream.get(&key)?)
    }

    pub(crate) fn of_mut(&mut self, key: StreamKey) -> Option<&mut Capture> {
        self.all.get_mut(self.by_stream.get(&key)?)
    }

    /// Where a stream in a capture stands.
    pub(crate) fn dependencies_mut(&mut self, key: StreamKey) -> Option<&mut CaptureDependencies> {
        self.of_mut(key)?.streams.get_mut(&key).map(|(_, dependencies)| dependencies)
    }

    pub(crate) fn dependencies(&self, key: StreamKey) -> Option<&CaptureDependencies> {
        self.of(key)?.streams.get(&key).map(|(_, dependencies)| dependencies)
    }

    /// Invalidates every capture that `which` picks; answers whether there was one.
    pub(crate) fn invalidate(&mut self, which: impl Fn(&Capture) -> bool) -> bool {
        let mut any = false;
        for capture in self.all.values_mut().filter(|capture| which(capture)) {
            capture.is_valid = false;
            any = true;
        }
        any
    }

    /// Whether a capture holds a stream that the legacy default stream of `context` would wait for.
    fn is_implicit(capture: &Capture, context: usize) -> bool {
        capture.streams.values().any(|(stream, _)| stream.is_blocking && stream.context == context)
    }

    /// The legacy default stream cannot be used while a blocking stream of its context is captured.
    pub(crate) fn check_legacy(&mut self, stream: CaptureStream, invalidates: bool) -> Outcome {
        let implicit = |capture: &Capture| Self::is_implicit(capture, stream.context);
        let is_blocked = stream.is_legacy && self.all.values().any(implicit);
        if is_blocked && invalidates {
            self.invalidate(implicit);
        }
        if is_blocked { Err(CUresult::ERROR_STREAM_CAPTURE_IMPLICIT) } else { Ok(()) }
    }

    /// Status of a stream's capture as the driver API numbers it.
    pub(crate) fn status(&self, key: StreamKey) -> u32 {
        match self.of(key) {
            None => capture_status::NONE,
            Some(capture) if capture.is_valid => capture_status::ACTIVE,
            Some(_) => capture_status::INVALIDATED,
        }
    }

    /// Whether an operation in this stream is captured.
    pub(crate) fn is_captured(&mut self, stream: CaptureStream) -> Outcome<bool> {
        self.check_legacy(stream, true)?;
        match self.status(stream.key) {
            capture_status::NONE => Ok(false),
            capture_status::ACTIVE => Ok(true),
            _ => Err(CUresult::ERROR_STREAM_CAPTURE_INVALIDATED),
        }
    }

    /// A captured operation that cannot be: the capture is invalidated.
    pub(crate) fn invalidate_of(&mut self, key: StreamKey) {
        if let Some(capture) = self.of_mut(key) {
            capture.is_valid = false;
        }
    }

    /// The capture that an event was last recorded in: `Some(None)` when it has ended.
    fn of_event(&self, event: usize) -> Option<Option<&Capture>> {
        self.events.get(&event).map(|(capture, _)| self.all.get(capture))
    }

    /// Refuses to ask or wait for an event that was last recorded in a capture, which is invalidated by it.
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

    /// An event is recorded in a stream: it stands for a place in a capture, or for none any more.
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

    /// A stream waits for an event. `was_recorded`: outside of captures, whenever.
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

    /// The stream stands behind `dependencies` as well from now on.
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

    /// An event's handle has ended, or stands for something else.
    pub(crate) fn forget_event(&mut self, event: usize) {
        self.events.remove(&event);
    }

    /// Removes a capture, and sets its streams free.
    pub(crate) fn close(&mut self, id: u64) -> Option<Capture> {
        self.by_stream.retain(|_, capture| *capture != id);
        self.all.remove(&id)
    }
}

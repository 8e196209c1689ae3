//! Stream capture: which streams are in which capture, and behind what each of them stands.
//!
//! A capture begins in one stream. Others join when they wait for an event that was recorded in it, and must have been
//! joined again before it ends. What goes wrong on the way invalidates the capture: every later call in it gives 901,
//! and so does its end, after which the streams are free again.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use katydid_cuda_sys::{CUgraphEdgeData, CUresult, capture_mode, capture_status};

use crate::backend::Outcome;
use crate::graph::{GraphId, NodeId, Owner, State};
use crate::params::Params;

/// A number that no other stream of the process has.
pub type StreamKey = u64;

/// A stream, as far as capture tells them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Which stream.
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
pub enum Taken {
    /// It is to be carried out.
    No,
    /// It is part of a graph now.
    Yes,
}

/// Nodes that the next one comes after.
pub(crate) type Frontier = Vec<(NodeId, CUgraphEdgeData)>;

/// One capture.
#[derive(Debug)]
pub(crate) struct Capture {
    pub(crate) id: u64,
    pub(crate) graph: GraphId,
    /// The graph was there before, and stays whatever comes of the capture.
    to_graph: bool,
    /// The stream it began in, which must end it.
    origin: StreamKey,
    pub(crate) mode: u32,
    pub(crate) thread: u64,
    pub(crate) is_valid: bool,
    /// Its streams: the place, and where it stands.
    streams: HashMap<StreamKey, (Place, Frontier)>,
}

/// All captures that are under way, and events last recorded in one.
#[derive(Debug, Default)]
pub(crate) struct Captures {
    all: HashMap<u64, Capture>,
    by_stream: HashMap<StreamKey, u64>,
    /// By handle: the capture, which may have ended, and where it stood.
    events: HashMap<usize, (u64, Frontier)>,
    last: u64,
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
        self.streams.values().any(|(place, _)| place.context == context)
    }
}

impl Captures {
    /// Whether anything here concerns anybody.
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
    pub(crate) fn frontier_mut(&mut self, key: StreamKey) -> Option<&mut Frontier> {
        self.of_mut(key)?.streams.get_mut(&key).map(|(_, frontier)| frontier)
    }

    pub(crate) fn frontier(&self, key: StreamKey) -> Option<&Frontier> {
        self.of(key)?.streams.get(&key).map(|(_, frontier)| frontier)
    }

    /// Spoils every capture that `which` picks; answers whether there was one.
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
        capture.streams.values().any(|(place, _)| place.is_blocking && place.context == context)
    }

    /// The legacy default stream cannot be used while a blocking stream of its context is captured.
    pub(crate) fn check_legacy(&mut self, place: Place, spoils: bool) -> Outcome {
        let implicit = |capture: &Capture| Self::is_implicit(capture, place.context);
        let found = place.is_legacy && self.all.values().any(implicit);
        if found && spoils {
            self.invalidate(implicit);
        }
        if found { Err(CUresult::ERROR_STREAM_CAPTURE_IMPLICIT) } else { Ok(()) }
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
    pub(crate) fn is_captured(&mut self, place: Place) -> Outcome<bool> {
        self.check_legacy(place, true)?;
        match self.status(place.key) {
            capture_status::NONE => Ok(false),
            capture_status::ACTIVE => Ok(true),
            _ => Err(CUresult::ERROR_STREAM_CAPTURE_INVALIDATED),
        }
    }

    /// A captured operation that cannot be: the capture is spoilt.
    pub(crate) fn spoil(&mut self, key: StreamKey) {
        if let Some(capture) = self.of_mut(key) {
            capture.is_valid = false;
        }
    }

    /// The capture that an event was last recorded in: `Some(None)` when it has ended.
    fn of_event(&self, event: usize) -> Option<Option<&Capture>> {
        self.events.get(&event).map(|(capture, _)| self.all.get(capture))
    }

    /// Refuses to ask or wait for an event that was last recorded in a capture, which is spoilt by it.
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
    pub(crate) fn record(&mut self, event: usize, place: Place) -> Outcome<Taken> {
        if !self.is_captured(place)? {
            self.events.remove(&event);
            return Ok(Taken::No);
        }
        let capture = self.by_stream.get(&place.key).copied().unwrap_or_default();
        let frontier = self.frontier(place.key).cloned().unwrap_or_default();
        self.events.insert(event, (capture, frontier));
        Ok(Taken::Yes)
    }

    /// A stream waits for an event. `was_recorded`: outside of captures, whenever.
    pub(crate) fn wait(&mut self, event: usize, place: Place, was_recorded: bool) -> Outcome<Taken> {
        let Some((id, frontier)) = self.events.get(&event).cloned() else {
            if !self.is_captured(place)? {
                return Ok(Taken::No);
            }
            if was_recorded {
                self.spoil(place.key);
                return Err(CUresult::ERROR_STREAM_CAPTURE_ISOLATION);
            }
            return Ok(Taken::Yes);
        };
        if place.is_legacy {
            self.invalidate(|capture| capture.id == id);
            return Err(CUresult::ERROR_STREAM_CAPTURE_IMPLICIT);
        }
        let Some(capture) = self.all.get(&id) else {
            self.spoil(place.key);
            return Err(CUresult::ERROR_INVALID_VALUE);
        };
        if !capture.is_valid {
            return Err(CUresult::ERROR_STREAM_CAPTURE_INVALIDATED);
        }
        match self.by_stream.get(&place.key).copied() {
            Some(own) if own != id => {
                self.invalidate(|capture| capture.id == id || capture.id == own);
                Err(CUresult::ERROR_STREAM_CAPTURE_MERGE)
            }
            _ => {
                self.join(id, place, &frontier);
                Ok(Taken::Yes)
            }
        }
    }

    /// The stream stands behind `frontier` as well from now on.
    fn join(&mut self, id: u64, place: Place, frontier: &Frontier) {
        self.by_stream.insert(place.key, id);
        let Some(capture) = self.all.get_mut(&id) else { return };
        let (_, own) = capture.streams.entry(place.key).or_insert_with(|| (place, Vec::new()));
        for edge in frontier {
            if !own.iter().any(|(node, _)| *node == edge.0) {
                own.push(*edge);
            }
        }
    }

    /// An event's handle has ended, or stands for something else.
    pub(crate) fn forget_event(&mut self, event: usize) {
        self.events.remove(&event);
    }

    /// Takes a capture out of the books, and sets its streams free.
    fn close(&mut self, id: u64) -> Option<Capture> {
        self.by_stream.retain(|_, capture| *capture != id);
        self.all.remove(&id)
    }
}

impl State {
    /// Begins a capture, into a graph of its own or behind `frontier` of one that is there.
    pub(crate) fn begin_capture(&mut self, place: Place, mode: u32, into: Option<(GraphId, Frontier)>) -> Outcome {
        if place.is_legacy {
            return Err(CUresult::ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        if mode > capture_mode::RELAXED {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        if self.captures.of(place.key).is_some() {
            return Err(CUresult::ERROR_ILLEGAL_STATE);
        }
        let to_graph = into.is_some();
        let (graph, frontier) = match into {
            Some((graph, frontier)) => {
                if self.graph(graph)?.captures > 0 {
                    return Err(CUresult::ERROR_ILLEGAL_STATE);
                }
                self.check_before(graph, &frontier, katydid_cuda_sys::node_type::KERNEL)?;
                (graph, frontier)
            }
            None => (self.create(Owner::Capture)?, Vec::new()),
        };
        self.graph_mut(graph)?.captures += 1;
        self.captures.last += 1;
        let (id, thread) = (self.captures.last, this_thread());
        let streams = HashMap::from([(place.key, (place, frontier))]);
        let capture = Capture { id, graph, to_graph, origin: place.key, mode, thread, is_valid: true, streams };
        self.captures.all.insert(id, capture);
        self.captures.by_stream.insert(place.key, id);
        Ok(())
    }

    /// Ends the capture of a stream and gives its graph.
    pub(crate) fn end_capture(&mut self, place: Place) -> Outcome<GraphId> {
        let capture = self.captures.of(place.key).ok_or(CUresult::ERROR_ILLEGAL_STATE)?;
        if capture.origin != place.key {
            self.captures.spoil(place.key);
            return Err(CUresult::ERROR_STREAM_CAPTURE_UNMATCHED);
        }
        let (id, graph) = (capture.id, capture.graph);
        let verdict = self.judge(capture);
        let kept = self.captures.close(id).is_some_and(|capture| capture.to_graph);
        let graph_state = self.graph_mut(graph)?;
        graph_state.captures -= 1;
        match verdict {
            Ok(()) => {
                if !kept {
                    graph_state.owner = Owner::Program;
                }
                Ok(graph)
            }
            Err(code) => {
                if !kept {
                    self.destroy(graph)?;
                }
                Err(code)
            }
        }
    }

    /// Whether a capture may end now.
    fn judge(&self, capture: &Capture) -> Outcome {
        if capture.mode != capture_mode::RELAXED && capture.thread != this_thread() {
            return Err(CUresult::ERROR_STREAM_CAPTURE_WRONG_THREAD);
        }
        if !capture.is_valid {
            return Err(CUresult::ERROR_STREAM_CAPTURE_INVALIDATED);
        }
        let nodes = |key: &StreamKey| capture.streams.get(key).into_iter().flat_map(|(_, nodes)| nodes);
        let joined = self.ancestors(nodes(&capture.origin).map(|(node, _)| *node));
        let all_joined = capture.streams.keys().flat_map(nodes).all(|(node, _)| joined.contains(node));
        if all_joined { Ok(()) } else { Err(CUresult::ERROR_STREAM_CAPTURE_UNJOINED) }
    }

    /// Puts a node behind where a captured stream stands; the stream stands behind the node then.
    pub(crate) fn take(&mut self, key: StreamKey, params: Params) -> Outcome<NodeId> {
        let graph = self.captures.of(key).ok_or(CUresult::ERROR_ILLEGAL_STATE)?.graph;
        let frontier = self.captures.frontier(key).cloned().unwrap_or_default();
        // Nodes may have been taken out of the graph since.
        let frontier: Frontier = frontier.into_iter().filter(|(node, _)| self.nodes.contains_key(node)).collect();
        let node = self.add(graph, &frontier, params)?;
        if let Some(frontier) = self.captures.frontier_mut(key) {
            *frontier = vec![(node, CUgraphEdgeData::default())];
        }
        Ok(node)
    }

    /// A stream's handle has ended: its capture can never be ended any more if it began there.
    pub(crate) fn forget_stream(&mut self, key: StreamKey) {
        let Some((id, origin, graph)) = self.captures.of(key).map(|it| (it.id, it.origin, it.graph)) else { return };
        if origin != key {
            self.captures.by_stream.remove(&key);
            return;
        }
        let kept = self.captures.close(id).is_some_and(|capture| capture.to_graph);
        if let Ok(graph) = self.graph_mut(graph) {
            graph.captures -= 1;
        }
        if !kept {
            let _ = self.destroy(graph);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Place = Place { key: 11, is_legacy: false, is_blocking: false, context: 1 };
    const B: Place = Place { key: 12, is_legacy: false, is_blocking: true, context: 1 };
    const LEGACY: Place = Place { key: 1, is_legacy: true, is_blocking: false, context: 1 };

    fn began(places: &[Place]) -> State {
        let mut state = State::default();
        places.iter().for_each(|place| state.begin_capture(*place, 0, None).unwrap());
        state
    }

    #[test]
    fn a_fork_that_did_no_work_need_not_be_joined() {
        let mut state = began(&[A]);
        state.take(A.key, Params::Empty).unwrap();
        assert_eq!(state.captures.record(100, A), Ok(Taken::Yes));
        assert_eq!(state.captures.wait(100, B, true), Ok(Taken::Yes));
        state.take(A.key, Params::Empty).unwrap();
        assert!(state.end_capture(A).is_ok());
        assert_eq!(state.captures.status(B.key), capture_status::NONE);
    }

    #[test]
    fn work_that_was_not_joined_spoils_the_end() {
        let mut state = began(&[A]);
        state.captures.record(100, A).unwrap();
        state.captures.wait(100, B, false).unwrap();
        state.take(B.key, Params::Empty).unwrap();
        assert_eq!(state.end_capture(A), Err(CUresult::ERROR_STREAM_CAPTURE_UNJOINED));
        assert_eq!((state.graphs.len(), state.nodes.len()), (0, 0));
        assert_eq!(state.captures.check_event(100), Err(CUresult::ERROR_INVALID_VALUE));
    }

    #[test]
    fn two_captures_cannot_meet() {
        let mut state = began(&[A, B]);
        state.captures.record(100, A).unwrap();
        assert_eq!(state.captures.wait(100, B, false), Err(CUresult::ERROR_STREAM_CAPTURE_MERGE));
        for place in [A, B] {
            assert_eq!(state.end_capture(place), Err(CUresult::ERROR_STREAM_CAPTURE_INVALIDATED));
            assert_eq!(state.end_capture(place), Err(CUresult::ERROR_ILLEGAL_STATE));
        }
    }

    #[test]
    fn the_legacy_stream_spoils_captures_of_blocking_streams_only() {
        let mut state = began(&[A]);
        assert_eq!(state.captures.is_captured(LEGACY), Ok(false));
        state.begin_capture(B, 2, None).unwrap();
        assert_eq!(state.captures.check_legacy(LEGACY, false), Err(CUresult::ERROR_STREAM_CAPTURE_IMPLICIT));
        assert_eq!(state.captures.status(B.key), capture_status::ACTIVE);
        assert_eq!(state.captures.is_captured(LEGACY), Err(CUresult::ERROR_STREAM_CAPTURE_IMPLICIT));
        assert_eq!(state.captures.status(B.key), capture_status::INVALIDATED);
        assert_eq!(state.captures.status(A.key), capture_status::ACTIVE);
    }

    #[test]
    fn waiting_twice_adds_a_dependency_once() {
        let mut state = began(&[A]);
        let first = state.take(A.key, Params::Empty).unwrap();
        state.captures.record(100, A).unwrap();
        let second = state.take(A.key, Params::Empty).unwrap();
        for _ in 0..2 {
            state.captures.wait(100, B, false).unwrap();
        }
        state.captures.record(101, A).unwrap();
        state.captures.wait(101, B, false).unwrap();
        let nodes: Vec<_> = state.captures.frontier(B.key).unwrap().iter().map(|edge| edge.0).collect();
        assert_eq!(nodes, [first, second]);
    }

    #[test]
    fn another_thread_cannot_end_a_capture_but_destroys_it() {
        let mut state = began(&[A]);
        let state = std::thread::spawn(move || {
            assert_eq!(state.end_capture(A), Err(CUresult::ERROR_STREAM_CAPTURE_WRONG_THREAD));
            state
        });
        assert_eq!(state.join().unwrap().end_capture(A), Err(CUresult::ERROR_ILLEGAL_STATE));
    }
}

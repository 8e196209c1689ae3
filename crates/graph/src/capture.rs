//! Captures: begin, add nodes, end.

use std::collections::HashMap;

use katydid_cuda_sys::{CUgraphEdgeData, CUresult, capture_mode};

use crate::captures::{Capture, CaptureDependencies, CaptureStream, StreamKey, this_thread};
use crate::graph::{GraphState, Owner};
use crate::handles::{GraphId, NodeId};
use crate::outcome::Outcome;
use crate::params::Params;

impl GraphState {
    /// Begins a capture, into a new graph or after `dependencies` of an existing one.
    pub(crate) fn begin_capture(
        &mut self,
        stream: CaptureStream,
        mode: u32,
        into: Option<(GraphId, CaptureDependencies)>,
    ) -> Outcome {
        if stream.is_legacy {
            return Err(CUresult::ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        if mode > capture_mode::RELAXED {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        if self.captures.of(stream.key).is_some() {
            return Err(CUresult::ERROR_ILLEGAL_STATE);
        }
        let to_graph = into.is_some();
        let (graph, dependencies) = match into {
            Some((graph, dependencies)) => {
                if self.graph(graph)?.captures > 0 {
                    return Err(CUresult::ERROR_ILLEGAL_STATE);
                }
                self.check_dependencies(graph, &dependencies, katydid_cuda_sys::node_type::KERNEL)?;
                (graph, dependencies)
            }
            None => (self.create(Owner::Capture)?, Vec::new()),
        };
        self.graph_mut(graph)?.captures += 1;
        self.captures.last += 1;
        let (id, thread) = (self.captures.last, this_thread());
        let streams = HashMap::from([(stream.key, (stream, dependencies))]);
        let capture = Capture { id, graph, to_graph, origin: stream.key, mode, thread, is_valid: true, streams };
        self.captures.all.insert(id, capture);
        self.captures.by_stream.insert(stream.key, id);
        Ok(())
    }

    /// Ends the capture of a stream and returns its graph.
    pub(crate) fn end_capture(&mut self, stream: CaptureStream) -> Outcome<GraphId> {
        let capture = self.captures.of(stream.key).ok_or(CUresult::ERROR_ILLEGAL_STATE)?;
        if capture.origin != stream.key {
            self.captures.invalidate_of(stream.key);
            return Err(CUresult::ERROR_STREAM_CAPTURE_UNMATCHED);
        }
        let (id, graph) = (capture.id, capture.graph);
        let verdict = self.check_capture(capture);
        let is_to_graph = self.captures.close(id).is_some_and(|capture| capture.to_graph);
        let graph_state = self.graph_mut(graph)?;
        graph_state.captures -= 1;
        match verdict {
            Ok(()) => {
                if !is_to_graph {
                    graph_state.owner = Owner::Program;
                }
                Ok(graph)
            }
            Err(code) => {
                if !is_to_graph {
                    self.destroy(graph)?;
                }
                Err(code)
            }
        }
    }

    /// Checks that a capture may end now.
    fn check_capture(&self, capture: &Capture) -> Outcome {
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

    /// Adds a node after the dependencies of a captured stream; later nodes of the stream depend on it.
    pub(crate) fn take(&mut self, key: StreamKey, params: Params) -> Outcome<NodeId> {
        let graph = self.captures.of(key).ok_or(CUresult::ERROR_ILLEGAL_STATE)?.graph;
        let dependencies = self.captures.dependencies(key).cloned().unwrap_or_default();
        // Nodes may have been removed from the graph since.
        let dependencies: CaptureDependencies =
            dependencies.into_iter().filter(|(node, _)| self.nodes.contains_key(node)).collect();
        let node = self.add(graph, &dependencies, params)?;
        if let Some(dependencies) = self.captures.dependencies_mut(key) {
            *dependencies = vec![(node, CUgraphEdgeData::default())];
        }
        Ok(node)
    }

    /// Forgets a stream whose handle has ended: a capture that began there can never end.
    pub(crate) fn forget_stream(&mut self, key: StreamKey) {
        let Some((id, origin, graph)) = self.captures.of(key).map(|it| (it.id, it.origin, it.graph)) else { return };
        if origin != key {
            self.captures.by_stream.remove(&key);
            return;
        }
        let is_to_graph = self.captures.close(id).is_some_and(|capture| capture.to_graph);
        if let Ok(graph) = self.graph_mut(graph) {
            graph.captures -= 1;
        }
        if !is_to_graph {
            let _ = self.destroy(graph);
        }
    }
}

#[cfg(test)]
mod tests {
    use katydid_cuda_sys::capture_status;

    use super::*;
    use crate::captures::CaptureOutcome;

    const A: CaptureStream = CaptureStream { key: 11, is_legacy: false, is_blocking: false, context: 1 };
    const B: CaptureStream = CaptureStream { key: 12, is_legacy: false, is_blocking: true, context: 1 };
    const LEGACY: CaptureStream = CaptureStream { key: 1, is_legacy: true, is_blocking: false, context: 1 };

    fn capturing(streams: &[CaptureStream]) -> GraphState {
        let mut state = GraphState::default();
        streams.iter().for_each(|stream| state.begin_capture(*stream, 0, None).unwrap());
        state
    }

    #[test]
    fn a_fork_that_did_no_work_need_not_be_joined() {
        let mut state = capturing(&[A]);
        state.take(A.key, Params::Empty).unwrap();
        assert_eq!(state.captures.record(100, A), Ok(CaptureOutcome::Yes));
        assert_eq!(state.captures.wait(100, B, true), Ok(CaptureOutcome::Yes));
        state.take(A.key, Params::Empty).unwrap();
        assert!(state.end_capture(A).is_ok());
        assert_eq!(state.captures.status(B.key), capture_status::NONE);
    }

    #[test]
    fn work_that_was_not_joined_invalidates_the_end() {
        let mut state = capturing(&[A]);
        state.captures.record(100, A).unwrap();
        state.captures.wait(100, B, false).unwrap();
        state.take(B.key, Params::Empty).unwrap();
        assert_eq!(state.end_capture(A), Err(CUresult::ERROR_STREAM_CAPTURE_UNJOINED));
        assert_eq!((state.graphs.len(), state.nodes.len()), (0, 0));
        assert_eq!(state.captures.check_event(100), Err(CUresult::ERROR_INVALID_VALUE));
    }

    #[test]
    fn two_captures_cannot_meet() {
        let mut state = capturing(&[A, B]);
        state.captures.record(100, A).unwrap();
        assert_eq!(state.captures.wait(100, B, false), Err(CUresult::ERROR_STREAM_CAPTURE_MERGE));
        for stream in [A, B] {
            assert_eq!(state.end_capture(stream), Err(CUresult::ERROR_STREAM_CAPTURE_INVALIDATED));
            assert_eq!(state.end_capture(stream), Err(CUresult::ERROR_ILLEGAL_STATE));
        }
    }

    #[test]
    fn the_legacy_stream_invalidates_captures_of_blocking_streams_only() {
        let mut state = capturing(&[A]);
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
        let mut state = capturing(&[A]);
        let first = state.take(A.key, Params::Empty).unwrap();
        state.captures.record(100, A).unwrap();
        let second = state.take(A.key, Params::Empty).unwrap();
        for _ in 0..2 {
            state.captures.wait(100, B, false).unwrap();
        }
        state.captures.record(101, A).unwrap();
        state.captures.wait(101, B, false).unwrap();
        let nodes: Vec<_> = state.captures.dependencies(B.key).unwrap().iter().map(|edge| edge.0).collect();
        assert_eq!(nodes, [first, second]);
    }

    #[test]
    fn another_thread_cannot_end_a_capture_but_destroys_it() {
        let mut state = capturing(&[A]);
        let state = std::thread::spawn(move || {
            assert_eq!(state.end_capture(A), Err(CUresult::ERROR_STREAM_CAPTURE_WRONG_THREAD));
            state
        });
        assert_eq!(state.join().unwrap().end_capture(A), Err(CUresult::ERROR_ILLEGAL_STATE));
    }
}

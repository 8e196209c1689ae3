//! Functions of stream capture.

#![expect(unsafe_code, reason = "functions of the driver API take raw pointers")]

use katydid_cuda_sys::{CUgraph, CUgraphEdgeData, CUgraphNode, CUresult, CUstream, capture_mode, capture_status};

use super::Graphs;
use super::raw::{dependencies, require_output, write};
use crate::backend::Backend;
use crate::handles::{graph_handle, node_handle};
use crate::legality::exchange_mode;
use crate::outcome::Outcome;

/// `CU_STREAM_SET_CAPTURE_DEPENDENCIES`: replace, not add.
const SET_CAPTURE_DEPENDENCIES: u32 = 1;

thread_local! {
    /// The arrays in this thread's last answer, which programs may read until the next.
    static CAPTURE_LISTS: std::cell::RefCell<(Vec<CUgraphNode>, Vec<CUgraphEdgeData>)> =
        const { std::cell::RefCell::new((Vec::new(), Vec::new())) };
}

/// The outputs of a query about a capture; all except the status may be null.
struct CaptureOutputs {
    status: *mut u32,
    id: *mut u64,
    graph: *mut CUgraph,
    nodes: *mut *const CUgraphNode,
    data: *mut *const CUgraphEdgeData,
    count: *mut usize,
}

/// Every function: pointers are null or as the driver API documents them.
#[allow(clippy::missing_safety_doc, reason = "one contract for all functions of the driver API, stated above")]
#[allow(clippy::missing_errors_doc, missing_docs, reason = "functions of the driver API, under its codes")]
#[allow(clippy::too_many_arguments, reason = "the driver's signatures")]
impl<B: Backend> Graphs<B> {
    pub unsafe fn begin_capture(&self, stream: CUstream, mode: u32) -> Outcome {
        let stream = self.backend.stream(stream)?;
        self.ask(|state| state.begin_capture(stream, mode, None))
    }

    pub unsafe fn begin_capture_v1(&self, stream: CUstream) -> Outcome {
        // SAFETY: handed on.
        unsafe { self.begin_capture(stream, capture_mode::GLOBAL) }
    }

    pub unsafe fn begin_capture_to(
        &self,
        stream: CUstream,
        graph: CUgraph,
        nodes: *const CUgraphNode,
        data: *const CUgraphEdgeData,
        count: usize,
        mode: u32,
    ) -> Outcome {
        let stream = self.backend.stream(stream)?;
        self.ask(|state| {
            let graph = state.graph_id(graph)?;
            // SAFETY: the contract of all functions here.
            let dependencies = unsafe { dependencies(state, nodes, data, count) }?;
            state.begin_capture(stream, mode, Some((graph, dependencies)))
        })
    }

    pub unsafe fn end_capture(&self, stream: CUstream, out: *mut CUgraph) -> Outcome {
        let stream = self.backend.stream(stream)?;
        let ended = self.ask(|state| state.end_capture(stream));
        // SAFETY: the contract of all functions here.
        unsafe { write(out, ended.map_or(CUgraph::NULL, graph_handle)) };
        ended.map(drop)
    }

    pub unsafe fn is_capturing(&self, stream: CUstream, out: *mut u32) -> Outcome {
        require_output(out)?;
        let stream = self.backend.stream(stream)?;
        let status = match self.is_quiet() {
            true => capture_status::NONE,
            false => self.ask(|state| {
                state.captures.check_legacy(stream, false)?;
                Ok(state.captures.status(stream.key))
            })?,
        };
        // SAFETY: the contract of all functions here.
        unsafe { write(out, status) };
        Ok(())
    }

    pub unsafe fn exchange_capture_mode(&self, mode: *mut u32) -> Outcome {
        // SAFETY: the contract of all functions here.
        unsafe {
            let new = read_number(mode)?;
            write(mode, exchange_mode(new));
        }
        Ok(())
    }

    pub unsafe fn capture_info_v1(&self, stream: CUstream, status: *mut u32, id: *mut u64) -> Outcome {
        let (graph, nodes, data, count) = (null(), null(), null(), null());
        self.answer(stream, &CaptureOutputs { status, id, graph, nodes, data, count })
    }

    pub unsafe fn capture_info_v2(
        &self,
        stream: CUstream,
        status: *mut u32,
        id: *mut u64,
        graph: *mut CUgraph,
        nodes: *mut *const CUgraphNode,
        count: *mut usize,
    ) -> Outcome {
        self.answer(stream, &CaptureOutputs { status, id, graph, nodes, data: null(), count })
    }

    pub unsafe fn capture_info(
        &self,
        stream: CUstream,
        status: *mut u32,
        id: *mut u64,
        graph: *mut CUgraph,
        nodes: *mut *const CUgraphNode,
        data: *mut *const CUgraphEdgeData,
        count: *mut usize,
    ) -> Outcome {
        self.answer(stream, &CaptureOutputs { status, id, graph, nodes, data, count })
    }

    fn answer(&self, stream: CUstream, answers: &CaptureOutputs) -> Outcome {
        // SAFETY: the contract of all functions here; the status is written once it is known.
        unsafe { self.is_capturing(stream, answers.status) }?;
        let stream = self.backend.stream(stream)?;
        self.with(|state| {
            let Some(capture) = state.captures.of(stream.key).filter(|capture| capture.is_valid) else { return };
            let dependencies = state.captures.dependencies(stream.key).cloned().unwrap_or_default();
            let nodes: Vec<_> = dependencies.iter().map(|edge| node_handle(edge.0)).collect();
            let data: Vec<_> = dependencies.iter().map(|edge| edge.1).collect();
            // SAFETY: the contract of all functions here.
            unsafe {
                write(answers.id, capture.id);
                write(answers.graph, graph_handle(capture.graph));
                write(answers.count, nodes.len());
                write_arrays(answers, nodes, data);
            }
        });
        Ok(())
    }

    pub unsafe fn update_dependencies(
        &self,
        stream: CUstream,
        nodes: *mut CUgraphNode,
        data: *const CUgraphEdgeData,
        count: usize,
        flags: u32,
    ) -> Outcome {
        let stream = self.backend.stream(stream)?;
        self.ask(|state| {
            let capture = state.captures.of(stream.key).ok_or(CUresult::ERROR_ILLEGAL_STATE)?;
            if !capture.is_valid {
                return Err(CUresult::ERROR_STREAM_CAPTURE_INVALIDATED);
            }
            let graph = capture.graph;
            // SAFETY: the contract of all functions here.
            let named = unsafe { dependencies(state, nodes.cast_const(), data, count) }?;
            if flags > SET_CAPTURE_DEPENDENCIES {
                return Err(CUresult::ERROR_INVALID_VALUE);
            }
            state.check_dependencies(graph, &named, katydid_cuda_sys::node_type::KERNEL)?;
            let dependencies = state.captures.dependencies_mut(stream.key).ok_or(CUresult::ERROR_ILLEGAL_STATE)?;
            if flags == SET_CAPTURE_DEPENDENCIES {
                dependencies.clear();
            }
            for edge in named {
                if !dependencies.iter().any(|(node, _)| *node == edge.0) {
                    dependencies.push(edge);
                }
            }
            Ok(())
        })
    }

    pub unsafe fn update_dependencies_v1(
        &self,
        stream: CUstream,
        nodes: *mut CUgraphNode,
        count: usize,
        flags: u32,
    ) -> Outcome {
        // SAFETY: handed on.
        unsafe { self.update_dependencies(stream, nodes, std::ptr::null(), count, flags) }
    }
}

/// Returns a null output, for an answer that is not needed.
fn null<T>() -> *mut T {
    std::ptr::null_mut()
}

/// # Safety
///
/// `pointer` is null or readable.
unsafe fn read_number(pointer: *const u32) -> Outcome<u32> {
    if pointer.is_null() {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    // SAFETY: not null, so readable by the contract.
    Ok(unsafe { pointer.read_unaligned() })
}

/// Returns arrays to the program that live until the thread's next query.
///
/// # Safety
///
/// The answers are null or writable.
unsafe fn write_arrays(answers: &CaptureOutputs, nodes: Vec<CUgraphNode>, data: Vec<CUgraphEdgeData>) {
    let empty = nodes.is_empty();
    let _ = CAPTURE_LISTS.try_with(|lists| {
        let mut lists = lists.borrow_mut();
        *lists = (nodes, data);
        let nodes = if empty { std::ptr::null() } else { lists.0.as_ptr() };
        let data = if empty { std::ptr::null() } else { lists.1.as_ptr() };
        // SAFETY: handed on.
        unsafe {
            write(answers.nodes, nodes);
            write(answers.data, data);
        }
    });
}

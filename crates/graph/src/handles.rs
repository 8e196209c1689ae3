//! Handles of graphs, nodes and other objects of graphs.
//!
//! Handles are numbers that are never reused, so a stale one is recognized.

use katydid_cuda_sys::{CUgraph, CUgraphNode};

/// Number of a graph.
pub type GraphId = u32;
/// Number of a node, in any graph.
pub type NodeId = u32;

/// The first handle of graphs. Handles of every kind are even numbers far from every address.
const FIRST_GRAPH_HANDLE: usize = 0x0047_0000_0000_0000;
/// The first handle of nodes.
const FIRST_NODE_HANDLE: usize = 0x004e_0000_0000_0000;
/// Distance of two handles.
const HANDLE_STEP: usize = 16;

/// Returns the number behind a handle of the kind that begins at `base`.
pub(crate) fn number(handle: usize, base: usize) -> Option<u32> {
    let offset = handle.checked_sub(base)?;
    if offset.is_multiple_of(HANDLE_STEP) { u32::try_from(offset / HANDLE_STEP).ok() } else { None }
}

/// Returns the handle of a number.
pub(crate) fn handle(number: u32, base: usize) -> *mut std::ffi::c_void {
    std::ptr::without_provenance_mut(base + number as usize * HANDLE_STEP)
}

/// Returns the handle of a graph.
pub(crate) fn graph_handle(id: GraphId) -> CUgraph {
    CUgraph(handle(id, FIRST_GRAPH_HANDLE))
}

/// Returns the handle of a node.
pub(crate) fn node_handle(id: NodeId) -> CUgraphNode {
    CUgraphNode(handle(id, FIRST_NODE_HANDLE))
}

/// Returns the number behind the handle of a graph.
pub(crate) fn graph_number(graph: CUgraph) -> Option<GraphId> {
    number(graph.0.addr(), FIRST_GRAPH_HANDLE)
}

/// Returns the number behind the handle of a node.
pub(crate) fn node_number(node: CUgraphNode) -> Option<NodeId> {
    number(node.0.addr(), FIRST_NODE_HANDLE)
}

//! Functions on whole graphs: making, copying, querying, drawing; and user objects.

#![expect(unsafe_code, reason = "functions of the driver API take raw pointers")]

use std::ffi::{CStr, OsStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt;

use katydid_cuda_sys::{CUgraph, CUgraphEdgeData, CUgraphNode, CUhostFn, CUresult, CUuserObject};

use super::Graphs;
use super::raw::{dependencies, list, require_output, write};
use crate::backend::Backend;
use crate::edges::Edge;
use crate::graph::Owner;
use crate::handles::{NodeId, graph_handle, node_handle, node_number};
use crate::outcome::Outcome;

/// `CU_USER_OBJECT_NO_DESTRUCTOR_SYNC`: the only flag, and it must be given.
const NO_DESTRUCTOR_SYNC: u32 = 1;
/// `CU_GRAPH_USER_OBJECT_MOVE`: the graph takes over references of the program.
const USER_OBJECT_MOVE: u32 = 1;

/// Every function: pointers are null or as the driver API documents them.
#[allow(clippy::missing_safety_doc, reason = "one contract for all functions of the driver API, stated above")]
#[allow(clippy::missing_errors_doc, missing_docs, reason = "functions of the driver API, under its codes")]
impl<B: Backend> Graphs<B> {
    pub unsafe fn create(&self, out: *mut CUgraph, flags: u32) -> Outcome {
        require_output(out)?;
        if flags != 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let id = self.ask(|state| state.create(Owner::Program))?;
        // SAFETY: the contract of all functions here.
        unsafe { write(out, graph_handle(id)) };
        Ok(())
    }

    pub unsafe fn destroy(&self, graph: CUgraph) -> Outcome {
        let (id, conditions) = self.ask(|state| {
            let id = state.graph_id(graph)?;
            let graph = state.graph(id)?;
            if graph.captures > 0 {
                return Err(CUresult::ERROR_ILLEGAL_STATE);
            }
            if graph.owner != Owner::Program {
                return Err(CUresult::ERROR_INVALID_VALUE);
            }
            let conditions: Vec<u64> = graph.conditions.keys().copied().collect();
            state.destroy(id)?;
            Ok((id, conditions))
        })?;
        if !conditions.is_empty() {
            self.backend.forget(id, &conditions);
        }
        Ok(())
    }

    pub unsafe fn clone_graph(&self, out: *mut CUgraph, original: CUgraph) -> Outcome {
        require_output(out)?;
        let copy = self.ask(|state| {
            let id = state.graph_id(original)?;
            state.copy_graph(id, Owner::Program)
        })?;
        // SAFETY: the contract of all functions here.
        unsafe { write(out, graph_handle(copy)) };
        Ok(())
    }

    pub unsafe fn find_in_clone(&self, out: *mut CUgraphNode, node: CUgraphNode, clone: CUgraph) -> Outcome {
        require_output(out)?;
        let found = self.ask(|state| {
            let copy = state.graph_id(clone)?;
            let node = node_number(node).ok_or(CUresult::ERROR_INVALID_VALUE)?;
            state.find_in_copy(node, copy)
        })?;
        // SAFETY: the contract of all functions here.
        unsafe { write(out, node_handle(found)) };
        Ok(())
    }

    pub unsafe fn nodes(&self, graph: CUgraph, out: *mut CUgraphNode, count: *mut usize) -> Outcome {
        let nodes = self.ask(|state| Ok(state.graph(state.graph_id(graph)?)?.nodes.clone()))?;
        // SAFETY: the contract of all functions here.
        unsafe { list(&handles(&nodes), out, count) }
    }

    pub unsafe fn roots(&self, graph: CUgraph, out: *mut CUgraphNode, count: *mut usize) -> Outcome {
        let nodes = self.ask(|state| Ok(state.graph(state.graph_id(graph)?)?.roots.clone()))?;
        // SAFETY: the contract of all functions here.
        unsafe { list(&handles(&nodes), out, count) }
    }

    pub unsafe fn edges(
        &self,
        graph: CUgraph,
        from: *mut CUgraphNode,
        to: *mut CUgraphNode,
        data: *mut CUgraphEdgeData,
        count: *mut usize,
    ) -> Outcome {
        require_output(count)?;
        if from.is_null() != to.is_null() {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let edges = self.ask(|state| state.edges(state.graph_id(graph)?))?;
        let ends = |pick: fn(&Edge) -> NodeId| edges.iter().map(pick).map(node_handle).collect::<Vec<_>>();
        let data_list: Vec<_> = edges.iter().map(|edge| edge.2).collect();
        // SAFETY: the contract of all functions here; each list gets the capacity that `count` had at first.
        unsafe {
            let capacity = count.read_unaligned();
            let (mut first, mut second) = (capacity, capacity);
            list(&ends(|edge| edge.1), to, &mut first)?;
            if !data.is_null() {
                list(&data_list, data, &mut second)?;
            }
            list(&ends(|edge| edge.0), from, count)
        }
    }

    pub unsafe fn edges_v1(
        &self,
        graph: CUgraph,
        from: *mut CUgraphNode,
        to: *mut CUgraphNode,
        count: *mut usize,
    ) -> Outcome {
        self.without_data(graph)?;
        // SAFETY: handed on.
        unsafe { self.edges(graph, from, to, std::ptr::null_mut(), count) }
    }

    /// Refuses graphs whose edges carry data, for forms of functions that cannot return it.
    fn without_data(&self, graph: CUgraph) -> Outcome {
        let edges = self.ask(|state| state.edges(state.graph_id(graph)?))?;
        let lossy = edges.iter().any(|edge| edge.2.from_port != 0 || edge.2.type_ != 0);
        if lossy { Err(CUresult::ERROR_LOSSY_QUERY) } else { Ok(()) }
    }

    pub unsafe fn add_dependencies(
        &self,
        graph: CUgraph,
        from: *const CUgraphNode,
        to: *const CUgraphNode,
        data: *const CUgraphEdgeData,
        count: usize,
    ) -> Outcome {
        // SAFETY: handed on.
        let edges = unsafe { self.named_edges(from, to, data, count) }?;
        self.ask(|state| {
            let graph = state.graph_id(graph)?;
            state.connect(graph, &edges)
        })
    }

    pub unsafe fn add_dependencies_v1(
        &self,
        graph: CUgraph,
        from: *const CUgraphNode,
        to: *const CUgraphNode,
        count: usize,
    ) -> Outcome {
        // SAFETY: handed on.
        unsafe { self.add_dependencies(graph, from, to, std::ptr::null(), count) }
    }

    pub unsafe fn remove_dependencies(
        &self,
        graph: CUgraph,
        from: *const CUgraphNode,
        to: *const CUgraphNode,
        data: *const CUgraphEdgeData,
        count: usize,
    ) -> Outcome {
        // SAFETY: handed on.
        let edges = unsafe { self.named_edges(from, to, data, count) }?;
        self.ask(|state| {
            let graph = state.graph_id(graph)?;
            state.disconnect(graph, &edges, !data.is_null())
        })
    }

    pub unsafe fn remove_dependencies_v1(
        &self,
        graph: CUgraph,
        from: *const CUgraphNode,
        to: *const CUgraphNode,
        count: usize,
    ) -> Outcome {
        // SAFETY: handed on.
        unsafe { self.remove_dependencies(graph, from, to, std::ptr::null(), count) }
    }

    unsafe fn named_edges(
        &self,
        from: *const CUgraphNode,
        to: *const CUgraphNode,
        data: *const CUgraphEdgeData,
        count: usize,
    ) -> Outcome<Vec<Edge>> {
        let plain = std::ptr::null();
        // SAFETY: handed on.
        let sources = self.ask(|state| unsafe { dependencies(state, from, data, count) })?;
        // SAFETY: handed on.
        let targets = self.ask(|state| unsafe { dependencies(state, to, plain, count) })?;
        Ok(sources.into_iter().zip(targets).map(|((from, data), (to, _))| (from, to, data)).collect())
    }

    pub unsafe fn draw(&self, graph: CUgraph, path: *const c_char, flags: u32) -> Outcome {
        let text = self.ask(|state| state.draw(state.graph_id(graph)?, flags))?;
        if path.is_null() {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        // SAFETY: not null, so a C string by the contract of all functions here.
        let path = OsStr::from_bytes(unsafe { CStr::from_ptr(path) }.to_bytes());
        std::fs::write(path, text).map_err(|_| CUresult::ERROR_OPERATING_SYSTEM)
    }

    pub unsafe fn create_object(
        &self,
        out: *mut CUuserObject,
        data: *mut c_void,
        destroy: CUhostFn,
        count: u32,
        flags: u32,
    ) -> Outcome {
        require_output(out)?;
        let destroy = destroy.filter(|_| count > 0 && flags == NO_DESTRUCTOR_SYNC);
        let destroy = destroy.ok_or(CUresult::ERROR_INVALID_VALUE)? as usize;
        let data = data.expose_provenance();
        let object = self.ask(|state| {
            let id = state.new_id()?;
            Ok(state.objects.create(id, destroy, data, count))
        })?;
        // SAFETY: the contract of all functions here.
        unsafe { write(out, object) };
        Ok(())
    }

    pub unsafe fn retain_object(&self, object: CUuserObject, count: u32) -> Outcome {
        self.ask(|state| {
            let id = state.objects.id(object)?;
            positive(count)?;
            state.objects.retain(id, count);
            Ok(())
        })
    }

    pub unsafe fn release_object(&self, object: CUuserObject, count: u32) -> Outcome {
        self.ask(|state| {
            let id = state.objects.id(object)?;
            positive(count)?;
            state.objects.release(id, count);
            Ok(())
        })
    }

    pub unsafe fn graph_retains(&self, graph: CUgraph, object: CUuserObject, count: u32, flags: u32) -> Outcome {
        self.ask(|state| {
            let (graph, id) = (state.graph_id(graph)?, state.objects.id(object)?);
            positive(count)?;
            if flags & !USER_OBJECT_MOVE != 0 {
                return Err(CUresult::ERROR_INVALID_VALUE);
            }
            if flags & USER_OBJECT_MOVE == 0 {
                state.objects.retain(id, count);
            }
            *state.graph_mut(graph)?.objects.entry(id).or_default() += count;
            Ok(())
        })
    }

    pub unsafe fn graph_releases(&self, graph: CUgraph, object: CUuserObject, count: u32) -> Outcome {
        self.ask(|state| {
            let (graph, id) = (state.graph_id(graph)?, state.objects.id(object)?);
            positive(count)?;
            let Some(held) = state.graph_mut(graph)?.objects.get_mut(&id) else { return Ok(()) };
            // More references than the graph holds are not released, as in the driver.
            if let Some(left) = held.checked_sub(count) {
                *held = left;
                state.objects.release(id, count);
            }
            state.graph_mut(graph)?.objects.retain(|_, held| *held > 0);
            Ok(())
        })
    }
}

fn positive(count: u32) -> Outcome {
    if count > 0 { Ok(()) } else { Err(CUresult::ERROR_INVALID_VALUE) }
}

fn handles(nodes: &[NodeId]) -> Vec<CUgraphNode> {
    nodes.iter().copied().map(node_handle).collect()
}

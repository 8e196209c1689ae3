//! Functions on nodes: adding them, and querying and changing their parameters.

#![expect(unsafe_code, reason = "functions of the driver API take raw pointers")]

use std::ffi::c_void;

use katydid_cuda_sys::{
    CUDA_BATCH_MEM_OP_NODE_PARAMS, CUDA_HOST_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS_v1,
    CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS, CUcontext, CUevent, CUfunction, CUgraph, CUgraphEdgeData, CUgraphNode,
    CUkernelNodeAttrValue, CUresult, node_attribute_default,
};

use super::Graphs;
use super::params::{ancient, described, modern};
use super::raw::{dependencies, list, read, require_output, write};
use crate::backend::Backend;
use crate::graph::{GraphState, Owner};
use crate::handles::{graph_handle, node_handle};
use crate::outcome::Outcome;
use crate::params::{Attributes, Params};

/// The place for a new node.
#[derive(Clone, Copy)]
pub(super) struct Spot {
    pub(super) out: *mut CUgraphNode,
    pub(super) graph: CUgraph,
    pub(super) nodes: *const CUgraphNode,
    pub(super) data: *const CUgraphEdgeData,
    pub(super) count: usize,
}

/// Every function: pointers are null or as the driver API documents them.
#[allow(clippy::missing_safety_doc, reason = "one contract for all functions of the driver API, stated above")]
#[allow(clippy::missing_errors_doc, missing_docs, reason = "functions of the driver API, under its codes")]
#[allow(clippy::too_many_arguments, reason = "the driver's signatures")]
impl<B: Backend> Graphs<B> {
    /// Adds a node with checked parameters; `finish` completes the parts that need the node's number.
    pub(super) unsafe fn put(
        &self,
        spot: Spot,
        params: Params,
        finish: impl FnOnce(&mut GraphState, u32) -> Outcome,
    ) -> Outcome {
        let id = self.ask(|state| {
            let graph = state.graph_id(spot.graph)?;
            // SAFETY: the contract of all functions here.
            let dependencies = unsafe { dependencies(state, spot.nodes, spot.data, spot.count) }?;
            let id = state.add(graph, &dependencies, params)?;
            if let Err(code) = finish(state, id) {
                state.remove(id)?;
                return Err(code);
            }
            Ok(id)
        })?;
        // SAFETY: the contract of all functions here.
        unsafe { write(spot.out, node_handle(id)) };
        Ok(())
    }

    unsafe fn plain(
        &self,
        out: *mut CUgraphNode,
        graph: CUgraph,
        nodes: *const CUgraphNode,
        count: usize,
        params: impl FnOnce() -> Outcome<Params>,
    ) -> Outcome {
        require_output(out)?;
        let spot = Spot { out, graph, nodes, data: std::ptr::null(), count };
        self.ask(|state| state.graph_id(graph))?;
        // SAFETY: handed on.
        unsafe { self.put(spot, params()?, |_, _| Ok(())) }
    }

    pub unsafe fn add_kernel(
        &self,
        out: *mut CUgraphNode,
        graph: CUgraph,
        nodes: *const CUgraphNode,
        count: usize,
        params: *const CUDA_KERNEL_NODE_PARAMS,
    ) -> Outcome {
        // SAFETY: handed on.
        unsafe {
            let params = || self.described_kernel(&read(params)?, Attributes::new());
            self.plain(out, graph, nodes, count, params)
        }
    }

    pub unsafe fn add_kernel_v1(
        &self,
        out: *mut CUgraphNode,
        graph: CUgraph,
        nodes: *const CUgraphNode,
        count: usize,
        params: *const CUDA_KERNEL_NODE_PARAMS_v1,
    ) -> Outcome {
        // SAFETY: handed on.
        unsafe {
            let params = || self.described_kernel(&modern(&read(params)?), Attributes::new());
            self.plain(out, graph, nodes, count, params)
        }
    }

    pub unsafe fn add_copy(
        &self,
        out: *mut CUgraphNode,
        graph: CUgraph,
        nodes: *const CUgraphNode,
        count: usize,
        copy: *const CUDA_MEMCPY3D,
        context: CUcontext,
    ) -> Outcome {
        // SAFETY: handed on.
        unsafe { self.plain(out, graph, nodes, count, || self.copy_params(&read(copy)?, context)) }
    }

    pub unsafe fn add_fill(
        &self,
        out: *mut CUgraphNode,
        graph: CUgraph,
        nodes: *const CUgraphNode,
        count: usize,
        fill: *const CUDA_MEMSET_NODE_PARAMS,
        context: CUcontext,
    ) -> Outcome {
        // SAFETY: handed on.
        unsafe { self.plain(out, graph, nodes, count, || self.fill_params(&read(fill)?, context)) }
    }

    pub unsafe fn add_host(
        &self,
        out: *mut CUgraphNode,
        graph: CUgraph,
        nodes: *const CUgraphNode,
        count: usize,
        host: *const CUDA_HOST_NODE_PARAMS,
    ) -> Outcome {
        // SAFETY: handed on.
        unsafe { self.plain(out, graph, nodes, count, || self.host_params(&read(host)?)) }
    }

    pub unsafe fn add_empty(
        &self,
        out: *mut CUgraphNode,
        graph: CUgraph,
        nodes: *const CUgraphNode,
        count: usize,
    ) -> Outcome {
        // SAFETY: handed on.
        unsafe { self.plain(out, graph, nodes, count, || Ok(Params::Empty)) }
    }

    pub unsafe fn add_record(
        &self,
        out: *mut CUgraphNode,
        graph: CUgraph,
        nodes: *const CUgraphNode,
        count: usize,
        event: CUevent,
    ) -> Outcome {
        let params = || self.checked_event(event).map(Params::RecordEvent);
        // SAFETY: handed on.
        unsafe { self.plain(out, graph, nodes, count, params) }
    }

    pub unsafe fn add_wait(
        &self,
        out: *mut CUgraphNode,
        graph: CUgraph,
        nodes: *const CUgraphNode,
        count: usize,
        event: CUevent,
    ) -> Outcome {
        // SAFETY: handed on.
        unsafe { self.plain(out, graph, nodes, count, || self.checked_event(event).map(Params::WaitEvent)) }
    }

    pub unsafe fn add_batch(
        &self,
        out: *mut CUgraphNode,
        graph: CUgraph,
        nodes: *const CUgraphNode,
        count: usize,
        batch: *const CUDA_BATCH_MEM_OP_NODE_PARAMS,
    ) -> Outcome {
        // SAFETY: handed on.
        unsafe { self.plain(out, graph, nodes, count, || self.batch_params(&read(batch)?)) }
    }

    pub unsafe fn add_child(
        &self,
        out: *mut CUgraphNode,
        graph: CUgraph,
        nodes: *const CUgraphNode,
        count: usize,
        child: CUgraph,
    ) -> Outcome {
        require_output(out)?;
        let spot = Spot { out, graph, nodes, data: std::ptr::null(), count };
        // SAFETY: handed on.
        unsafe { self.put_child(spot, child, false) }
    }

    /// Adds a child graph, which is copied into its node, or moves into it.
    pub(super) unsafe fn put_child(&self, spot: Spot, child: CUgraph, moves: bool) -> Outcome {
        let id = self.ask(|state| {
            let (outer, id) = (state.graph_id(spot.graph)?, state.graph_id(child)?);
            state.check_child(outer, id, moves)?;
            // Neither a copy nor a move takes handles along (driver 580.159.04).
            if state.graph(id)?.conditions.is_empty() { Ok(id) } else { Err(CUresult::ERROR_NOT_SUPPORTED) }
        })?;
        let copy = if moves { id } else { self.ask(|state| state.copy_graph(id, Owner::Program))? };
        let adopt = |state: &mut GraphState, node| {
            state.graph_mut(copy)?.owner = Owner::Node(node);
            Ok(())
        };
        // SAFETY: handed on.
        let put = unsafe { self.put(spot, Params::Child(copy), adopt) };
        if put.is_err() && !moves {
            self.ask(|state| state.destroy(copy))?;
        }
        put
    }

    pub unsafe fn child(&self, node: CUgraphNode, out: *mut CUgraph) -> Outcome {
        require_output(out)?;
        let graph = self.ask(|state| match &state.node(state.node_id(node)?)?.params {
            Params::Child(graph) => Ok(*graph),
            _ => Err(CUresult::ERROR_INVALID_VALUE),
        })?;
        // SAFETY: the contract of all functions here.
        unsafe { write(out, graph_handle(graph)) };
        Ok(())
    }

    pub unsafe fn remove(&self, node: CUgraphNode) -> Outcome {
        self.ask(|state| {
            let id = state.node_id(node)?;
            if crate::edges::is_memory(&state.node(id)?.params) {
                return Err(CUresult::ERROR_NOT_SUPPORTED);
            }
            state.remove(id)
        })
    }

    pub unsafe fn node_type(&self, node: CUgraphNode, out: *mut u32) -> Outcome {
        require_output(out)?;
        let number = self.ask(|state| Ok(state.node(state.node_id(node)?)?.params.type_number()))?;
        // SAFETY: the contract of all functions here.
        unsafe { write(out, number) };
        Ok(())
    }

    pub unsafe fn node_dependencies(
        &self,
        node: CUgraphNode,
        out: *mut CUgraphNode,
        data: *mut CUgraphEdgeData,
        count: *mut usize,
    ) -> Outcome {
        let dependencies = self.ask(|state| Ok(state.node(state.node_id(node)?)?.dependencies.clone()))?;
        // SAFETY: handed on.
        unsafe { neighbours(&dependencies, out, data, count) }
    }

    pub unsafe fn node_dependencies_v1(&self, node: CUgraphNode, out: *mut CUgraphNode, count: *mut usize) -> Outcome {
        // SAFETY: handed on.
        unsafe { self.node_dependencies(node, out, std::ptr::null_mut(), count) }
    }

    pub unsafe fn node_dependents(
        &self,
        node: CUgraphNode,
        out: *mut CUgraphNode,
        data: *mut CUgraphEdgeData,
        count: *mut usize,
    ) -> Outcome {
        let dependents = self.ask(|state| {
            let id = state.node_id(node)?;
            let dependents = &state.node(id)?.dependents;
            dependents.iter().map(|to| Ok((*to, state.edge(id, *to)?))).collect::<Outcome<Vec<_>>>()
        })?;
        // SAFETY: handed on.
        unsafe { neighbours(&dependents, out, data, count) }
    }

    pub unsafe fn node_dependents_v1(&self, node: CUgraphNode, out: *mut CUgraphNode, count: *mut usize) -> Outcome {
        // SAFETY: handed on.
        unsafe { self.node_dependents(node, out, std::ptr::null_mut(), count) }
    }

    /// Reads the parameters of a node.
    pub(super) fn read_params<T>(&self, node: CUgraphNode, see: impl FnOnce(&Params) -> Option<T>) -> Outcome<T> {
        self.ask(|state| see(&state.node(state.node_id(node)?)?.params).ok_or(CUresult::ERROR_INVALID_VALUE))
    }

    /// Replaces the parameters of a node by others of its type.
    pub(super) fn set(&self, node: CUgraphNode, params: impl FnOnce(&Params) -> Outcome<Params>) -> Outcome {
        let old = self.read_params(node, |params| Some(params.clone()))?;
        let new = params(&old)?;
        if old.type_number() != new.type_number() {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        self.ask(|state| {
            state.node_mut(state.node_id(node)?)?.params = new;
            Ok(())
        })
    }

    pub unsafe fn kernel_get(&self, node: CUgraphNode, out: *mut CUDA_KERNEL_NODE_PARAMS) -> Outcome {
        require_output(out)?;
        let mut params =
            self.read_params(node, |it| if let Params::Kernel(it) = it { Some(described(it)) } else { None })?;
        if params.func.is_null() {
            // A kernel whose library was unloaded has no function.
            let function = self.backend.function_of(params.kern.0.addr(), params.ctx.0.addr()).unwrap_or(0);
            params.func = CUfunction(std::ptr::with_exposed_provenance_mut(function));
        }
        // SAFETY: the contract of all functions here.
        unsafe { write(out, params) };
        Ok(())
    }

    pub unsafe fn kernel_get_v1(&self, node: CUgraphNode, out: *mut CUDA_KERNEL_NODE_PARAMS_v1) -> Outcome {
        require_output(out)?;
        let mut params = CUDA_KERNEL_NODE_PARAMS::default();
        // SAFETY: a local, and the contract of all functions here.
        unsafe {
            self.kernel_get(node, &mut params)?;
            write(out, ancient(&params));
        }
        Ok(())
    }

    pub unsafe fn kernel_set(&self, node: CUgraphNode, params: *const CUDA_KERNEL_NODE_PARAMS) -> Outcome {
        // SAFETY: handed on.
        self.set(node, |old| unsafe { self.described_kernel(&read(params)?, attributes_of(old)) })
    }

    pub unsafe fn kernel_set_v1(&self, node: CUgraphNode, params: *const CUDA_KERNEL_NODE_PARAMS_v1) -> Outcome {
        // SAFETY: handed on.
        self.set(node, |old| unsafe { self.described_kernel(&modern(&read(params)?), attributes_of(old)) })
    }

    pub unsafe fn attribute(&self, node: CUgraphNode, id: u32, out: *mut CUkernelNodeAttrValue) -> Outcome {
        require_output(out)?;
        let values = self.read_params(node, |it| match it {
            Params::Kernel(it) => it.attributes.get(&id).copied().or_else(|| node_attribute_default(id)),
            _ => None,
        })?;
        // SAFETY: the contract of all functions here.
        unsafe { write(out, CUkernelNodeAttrValue { words: values }) };
        Ok(())
    }

    pub unsafe fn set_attribute(&self, node: CUgraphNode, id: u32, value: *const CUkernelNodeAttrValue) -> Outcome {
        // SAFETY: handed on.
        let values = unsafe { read(value) }?.words;
        if node_attribute_default(id).is_none() {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        self.set(node, |old| {
            let mut params = old.clone();
            let Params::Kernel(kernel) = &mut params else { return Err(CUresult::ERROR_INVALID_VALUE) };
            kernel.attributes.insert(id, values);
            Ok(params)
        })
    }

    pub unsafe fn copy_attributes(&self, target: CUgraphNode, source: CUgraphNode) -> Outcome {
        let attributes = self
            .read_params(source, |it| if let Params::Kernel(it) = it { Some(it.attributes.clone()) } else { None })?;
        self.set(target, |old| {
            let mut params = old.clone();
            let Params::Kernel(kernel) = &mut params else { return Err(CUresult::ERROR_INVALID_VALUE) };
            kernel.attributes = attributes;
            Ok(params)
        })
    }

    pub unsafe fn copy_get(&self, node: CUgraphNode, out: *mut CUDA_MEMCPY3D) -> Outcome {
        require_output(out)?;
        let copy = self.read_params(node, |it| if let Params::Memcpy(it) = it { Some(*it) } else { None })?.copy;
        // SAFETY: the contract of all functions here.
        unsafe { write(out, copy) };
        Ok(())
    }

    pub unsafe fn copy_set(&self, node: CUgraphNode, copy: *const CUDA_MEMCPY3D) -> Outcome {
        // SAFETY: handed on.
        self.set(node, |old| self.copy_params(&unsafe { read(copy) }?, context_of(old)))
    }

    pub unsafe fn fill_get(&self, node: CUgraphNode, out: *mut CUDA_MEMSET_NODE_PARAMS) -> Outcome {
        require_output(out)?;
        let fill = self.read_params(node, |it| if let Params::Memset(it) = it { Some(it.fill) } else { None })?;
        // SAFETY: the contract of all functions here.
        unsafe { write(out, fill) };
        Ok(())
    }

    pub unsafe fn fill_set(&self, node: CUgraphNode, fill: *const CUDA_MEMSET_NODE_PARAMS) -> Outcome {
        // SAFETY: handed on.
        self.set(node, |old| self.fill_params(&unsafe { read(fill) }?, context_of(old)))
    }

    pub unsafe fn host_get(&self, node: CUgraphNode, out: *mut CUDA_HOST_NODE_PARAMS) -> Outcome {
        require_output(out)?;
        let host = self.read_params(node, |it| if let Params::Host(it) = it { Some(*it) } else { None })?;
        let data: *mut c_void = std::ptr::with_exposed_provenance_mut(host.data);
        // SAFETY: the contract of all functions here.
        unsafe { write(out, CUDA_HOST_NODE_PARAMS { func: host.function, userData: data }) };
        Ok(())
    }

    pub unsafe fn host_set(&self, node: CUgraphNode, host: *const CUDA_HOST_NODE_PARAMS) -> Outcome {
        // SAFETY: handed on.
        self.set(node, |_| self.host_params(&unsafe { read(host) }?))
    }

    pub unsafe fn record_get(&self, node: CUgraphNode, out: *mut CUevent) -> Outcome {
        require_output(out)?;
        let event =
            self.read_params(node, |it| if let Params::RecordEvent(event) = it { Some(*event) } else { None })?;
        // SAFETY: the contract of all functions here.
        unsafe { write(out, event) };
        Ok(())
    }

    pub unsafe fn record_set(&self, node: CUgraphNode, event: CUevent) -> Outcome {
        self.set(node, |_| self.checked_event(event).map(Params::RecordEvent))
    }

    pub unsafe fn wait_get(&self, node: CUgraphNode, out: *mut CUevent) -> Outcome {
        require_output(out)?;
        let event = self.read_params(node, |it| if let Params::WaitEvent(event) = it { Some(*event) } else { None })?;
        // SAFETY: the contract of all functions here.
        unsafe { write(out, event) };
        Ok(())
    }

    pub unsafe fn wait_set(&self, node: CUgraphNode, event: CUevent) -> Outcome {
        self.set(node, |_| self.checked_event(event).map(Params::WaitEvent))
    }

    pub unsafe fn batch_get(&self, node: CUgraphNode, out: *mut CUDA_BATCH_MEM_OP_NODE_PARAMS) -> Outcome {
        require_output(out)?;
        let batch = self.read_params(node, |it| if let Params::Batch(it) = it { Some(it.clone()) } else { None })?;
        let params = CUDA_BATCH_MEM_OP_NODE_PARAMS {
            ctx: CUcontext(std::ptr::with_exposed_provenance_mut(batch.context)),
            count: batch.operations.len() as u32,
            paramArray: batch.operations.as_ptr().cast_mut(),
            flags: batch.flags,
        };
        // SAFETY: the contract of all functions here; the array lives as long as the node's parameters.
        unsafe { write(out, params) };
        Ok(())
    }

    pub unsafe fn batch_set(&self, node: CUgraphNode, batch: *const CUDA_BATCH_MEM_OP_NODE_PARAMS) -> Outcome {
        // SAFETY: handed on.
        self.set(node, |_| unsafe { self.batch_params(&read(batch)?) })
    }
}

/// Returns the attributes of a kernel node.
pub(super) fn attributes_of(params: &Params) -> Attributes {
    if let Params::Kernel(kernel) = params { kernel.attributes.clone() } else { Attributes::new() }
}

/// Returns the context of a copy or fill.
pub(super) fn context_of(params: &Params) -> CUcontext {
    let context = match params {
        Params::Memcpy(copy) => copy.context,
        Params::Memset(fill) => fill.context,
        _ => 0,
    };
    CUcontext(std::ptr::with_exposed_provenance_mut(context))
}

/// Returns the neighbors of a node; forms that cannot return edge data refuse edges with data.
///
/// # Safety
///
/// As [`list`]; `data` has the same capacity.
unsafe fn neighbours(
    edges: &[(u32, CUgraphEdgeData)],
    out: *mut CUgraphNode,
    data: *mut CUgraphEdgeData,
    count: *mut usize,
) -> Outcome {
    require_output(count)?;
    let lossy = edges.iter().any(|edge| edge.1.from_port != 0 || edge.1.type_ != 0);
    if lossy && data.is_null() && !out.is_null() {
        return Err(CUresult::ERROR_LOSSY_QUERY);
    }
    let nodes: Vec<_> = edges.iter().map(|edge| node_handle(edge.0)).collect();
    let data_list: Vec<_> = edges.iter().map(|edge| edge.1).collect();
    // SAFETY: the contract of this function; each list gets the capacity that `count` had at first.
    unsafe {
        let mut capacity = count.read_unaligned();
        if !data.is_null() && !out.is_null() {
            list(&data_list, data, &mut capacity)?;
        }
        list(&nodes, out, count)
    }
}

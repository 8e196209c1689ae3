//! Memory nodes, conditional nodes, generic parameters, and the device memory of graphs.

#![expect(unsafe_code, reason = "functions of the driver API take raw pointers")]

use std::ffi::c_void;
use std::sync::Arc;

use katydid_cuda_sys::{
    CUDA_MEM_ALLOC_NODE_PARAMS, CUcontext, CUgraph, CUgraphEdgeData, CUgraphNode, CUgraphNodeParams, CUresult,
    node_type,
};

use super::Graphs;
use super::nodes::{Spot, attributes_of};
use super::params::{GenericAlloc, GenericConditional, generic, payload, store};
use super::raw::{dependencies, read, require_output, write};
use crate::backend::Backend;
use crate::captures::{CaptureOutcome, CaptureStream};
use crate::graph::{Condition, GraphState, Owner};
use crate::handles::{GraphId, NodeId, graph_handle};
use crate::instantiate::check_conditional;
use crate::outcome::Outcome;
use crate::params::{Alloc, Attributes, Conditional, Params};

/// `CU_GRAPH_COND_ASSIGN_DEFAULT`: each launch begins with the default value.
const COND_ASSIGN_DEFAULT: u32 = 1;
/// `CU_MEM_ALLOCATION_TYPE_PINNED` and `CU_MEM_LOCATION_TYPE_DEVICE`: the only kind of memory that graphs have.
const ALLOCATION_TYPE_PINNED: u32 = 1;
const LOCATION_TYPE_DEVICE: u32 = 1;
/// `CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE`: the child graph belongs to the node.
const CHILD_GRAPH_OWNERSHIP_MOVE: u64 = 1;

/// Every function: pointers are null or as the driver API documents them.
#[allow(clippy::missing_safety_doc, reason = "one contract for all functions of the driver API, stated above")]
#[allow(clippy::missing_errors_doc, missing_docs, reason = "functions of the driver API, under its codes")]
#[allow(clippy::too_many_arguments, reason = "the driver's signatures")]
impl<B: Backend> Graphs<B> {
    /// Allocates memory for a node after others of its graph; returns the node's parameters. Memory that those have freed is
    /// used again, at the same address.
    fn allocate(
        &self,
        request: &CUDA_MEM_ALLOC_NODE_PARAMS,
        freed_by: impl FnOnce(&GraphState) -> Option<(GraphId, Vec<NodeId>)>,
    ) -> Outcome<(Alloc, u64)> {
        let fits = request.allocType == ALLOCATION_TYPE_PINNED
            && request.location.type_ == LOCATION_TYPE_DEVICE
            && request.handleTypes == 0;
        if !fits || request.bytesize == 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        self.backend.device(request.location.id).map_err(|_| CUresult::ERROR_INVALID_VALUE)?;
        let (size, device) = (request.bytesize as u64, request.location.id);
        let freed = self.ask(|state| {
            let freed = freed_by(state).and_then(|(graph, nodes)| state.freed_before(graph, &nodes, size, device));
            freed.iter().for_each(|(address, _)| state.memory.begin_again(*address));
            Ok(freed)
        })?;
        let (address, memory) = match freed {
            Some(freed) => freed,
            None => {
                let (address, memory) = self.backend.allocate(request)?;
                self.with(|state| state.memory.add(address, size, device, &memory));
                (address, memory)
            }
        };
        let mut params = *request;
        // The access descriptions are the caller's, and gone when a program queries the parameters.
        (params.dptr, params.accessDescs, params.accessDescCount) = (address, std::ptr::null(), 0);
        Ok((Alloc { params, memory }, address))
    }

    pub unsafe fn add_alloc(
        &self,
        out: *mut CUgraphNode,
        graph: CUgraph,
        nodes: *const CUgraphNode,
        count: usize,
        params: *mut CUDA_MEM_ALLOC_NODE_PARAMS,
    ) -> Outcome {
        require_output(out)?;
        // SAFETY: the contract of all functions here.
        let mut request = unsafe { read(params.cast_const()) }?;
        let spot = Spot { out, graph, nodes, data: std::ptr::null(), count };
        // SAFETY: handed on.
        request.dptr = unsafe { self.put_alloc(spot, &request) }?;
        // SAFETY: as above.
        unsafe { write(params, request) };
        Ok(())
    }

    unsafe fn put_alloc(&self, spot: Spot, request: &CUDA_MEM_ALLOC_NODE_PARAMS) -> Outcome<u64> {
        let graph = self.ask(|state| state.graph_id(spot.graph))?;
        // SAFETY: the contract of all functions here.
        let dependencies = self.ask(|state| unsafe { dependencies(state, spot.nodes, spot.data, spot.count) })?;
        let dependencies = dependencies.iter().map(|(node, _)| *node).collect();
        let (alloc, address) = self.allocate(request, |_| Some((graph, dependencies)))?;
        // SAFETY: handed on.
        unsafe { self.put(spot, Params::MemAlloc(alloc), |_, _| Ok(())) }?;
        Ok(address)
    }

    pub unsafe fn alloc_get(&self, node: CUgraphNode, out: *mut CUDA_MEM_ALLOC_NODE_PARAMS) -> Outcome {
        require_output(out)?;
        let params =
            self.read_params(node, |it| if let Params::MemAlloc(it) = it { Some(it.clone()) } else { None })?.params;
        // SAFETY: the contract of all functions here.
        unsafe { write(out, params) };
        Ok(())
    }

    pub unsafe fn add_free(
        &self,
        out: *mut CUgraphNode,
        graph: CUgraph,
        nodes: *const CUgraphNode,
        count: usize,
        address: u64,
    ) -> Outcome {
        require_output(out)?;
        let spot = Spot { out, graph, nodes, data: std::ptr::null(), count };
        // SAFETY: handed on.
        unsafe { self.put(spot, Params::MemFree(address), |state, _| state.memory.claim_free(address)) }
    }

    pub unsafe fn free_get(&self, node: CUgraphNode, out: *mut u64) -> Outcome {
        require_output(out)?;
        let address =
            self.read_params(node, |it| if let Params::MemFree(address) = it { Some(*address) } else { None })?;
        // SAFETY: the contract of all functions here.
        unsafe { write(out, address) };
        Ok(())
    }

    /// Captures a stream-ordered allocation, if its stream is captured; returns the address then.
    ///
    /// # Errors
    ///
    /// As [`Graphs::take`], and as for the allocation.
    pub fn take_alloc(&self, stream: CaptureStream, size: usize, device: i32) -> Outcome<Option<u64>> {
        let mut address = None;
        let make = || {
            let mut request = CUDA_MEM_ALLOC_NODE_PARAMS { bytesize: size, ..CUDA_MEM_ALLOC_NODE_PARAMS::default() };
            (request.allocType, request.location.type_, request.location.id) =
                (ALLOCATION_TYPE_PINNED, LOCATION_TYPE_DEVICE, device);
            let freed_by = |state: &GraphState| {
                let dependencies = state.captures.dependencies(stream.key)?;
                let graph = state.captures.of(stream.key)?.graph;
                Some((graph, dependencies.iter().map(|(node, _)| *node).collect()))
            };
            let (alloc, at) = self.allocate(&request, freed_by)?;
            address = Some(at);
            Ok(Params::MemAlloc(alloc))
        };
        match self.take(stream, make)? {
            CaptureOutcome::Yes => Ok(address),
            CaptureOutcome::No => Ok(None),
        }
    }

    /// Captures a stream-ordered free, if its stream is captured; only memory of graphs can be freed so.
    ///
    /// # Errors
    ///
    /// As [`Graphs::take`]; `ERROR_INVALID_VALUE` for other memory.
    pub fn take_free(&self, stream: CaptureStream, address: u64) -> Outcome<CaptureOutcome> {
        self.take(stream, || {
            self.ask(|state| state.memory.claim_free(address))?;
            Ok(Params::MemFree(address))
        })
    }

    pub unsafe fn memory_attribute(&self, device: i32, attribute: u32, out: *mut c_void) -> Outcome {
        require_output(out)?;
        self.backend.device(device)?;
        let value = self.ask(|state| state.memory.usage(device).get(attribute))?;
        // SAFETY: the contract of all functions here: every attribute has eight bytes.
        unsafe { write(out.cast::<u64>(), value) };
        Ok(())
    }

    pub unsafe fn set_memory_attribute(&self, device: i32, attribute: u32, value: *mut c_void) -> Outcome {
        require_output(value)?;
        self.backend.device(device)?;
        // SAFETY: as above.
        let value = unsafe { value.cast::<u64>().read_unaligned() };
        self.ask(|state| state.memory.usage(device).reset(attribute, value))
    }

    pub unsafe fn trim_memory(&self, device: i32) -> Outcome {
        self.backend.device(device)?;
        self.with(|state| state.memory.trim(device));
        Ok(())
    }

    pub unsafe fn create_condition(
        &self,
        out: *mut u64,
        graph: CUgraph,
        context: CUcontext,
        default: u32,
        flags: u32,
    ) -> Outcome {
        require_output(out)?;
        let id = self.ask(|state| state.graph_id(graph).and_then(|id| state.outermost(id)))?;
        let context = if context.is_null() { Err(CUresult::ERROR_INVALID_CONTEXT) } else { Ok(context) }?;
        let context = self.backend.context(context)?;
        if flags & !COND_ASSIGN_DEFAULT != 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let value = self.backend.condition(id, context, default, flags)?;
        self.ask(|state| {
            state.graph_mut(id)?.conditions.insert(value, Condition::default());
            Ok(())
        })?;
        // SAFETY: the contract of all functions here.
        unsafe { write(out, value) };
        Ok(())
    }

    /// Adds a conditional node; its body graphs are made with it, and belong to it.
    unsafe fn put_conditional(&self, spot: Spot, request: &mut GenericConditional) -> Outcome {
        check_conditional(request.type_, request.size)?;
        let context = self.backend.context(request.ctx)?;
        let bodies = self.ask(|state| {
            let graph = state.graph_id(spot.graph)?;
            free_condition(state, graph, request.handle)?;
            (0..request.size).map(|_| state.create(Owner::Program)).collect::<Outcome<Vec<_>>>()
        })?;
        let array = Arc::new(bodies.iter().map(|body| graph_handle(*body).0.addr()).collect::<Vec<_>>());
        let pointer = array.as_ptr().cast_mut().cast();
        let (handle, kind) = (request.handle, request.type_);
        let params = Params::Conditional(Conditional { handle, kind, bodies: bodies.clone(), array, context });
        let adopt = |state: &mut GraphState, node| {
            for body in &bodies {
                state.graph_mut(*body)?.owner = Owner::Node(node);
            }
            let owner = state.node(node)?.graph;
            if let Some(condition) = find_condition(state, owner, handle)? {
                condition.node = Some(node);
            }
            Ok(())
        };
        // SAFETY: handed on.
        unsafe { self.put(spot, params, adopt) }?;
        request.phGraph_out = pointer;
        Ok(())
    }

    pub unsafe fn add_generic(
        &self,
        out: *mut CUgraphNode,
        graph: CUgraph,
        nodes: *const CUgraphNode,
        data: *const CUgraphEdgeData,
        count: usize,
        params: *mut CUgraphNodeParams,
    ) -> Outcome {
        require_output(out)?;
        let spot = Spot { out, graph, nodes, data, count };
        // SAFETY: handed on, for the whole body.
        unsafe {
            let mut request = generic(params.cast_const())?;
            match request.type_ {
                node_type::GRAPH => {
                    let child = CUgraph(std::ptr::with_exposed_provenance_mut(request.payload[0] as usize));
                    return self.put_child(spot, child, request.payload[1] & 0xffff_ffff == CHILD_GRAPH_OWNERSHIP_MOVE);
                }
                node_type::MEM_ALLOC => {
                    let mut alloc: GenericAlloc = payload(&request)?;
                    alloc.dptr = self.put_alloc(spot, &alloc)?;
                    store(&mut request, &alloc);
                    write(params, request);
                }
                node_type::MEM_FREE => {
                    let address = request.payload[0];
                    let claim = |state: &mut GraphState, _| state.memory.claim_free(address);
                    return self.put(spot, Params::MemFree(address), claim);
                }
                node_type::CONDITIONAL => {
                    let mut conditional: GenericConditional = payload(&request)?;
                    self.put_conditional(spot, &mut conditional)?;
                    store(&mut request, &conditional);
                    write(params, request);
                }
                _ => {
                    let params = self.generic_params(&request, Attributes::new())?;
                    return self.put(spot, params, |_, _| Ok(()));
                }
            }
            Ok(())
        }
    }

    pub unsafe fn add_generic_v1(
        &self,
        out: *mut CUgraphNode,
        graph: CUgraph,
        nodes: *const CUgraphNode,
        count: usize,
        params: *mut CUgraphNodeParams,
    ) -> Outcome {
        // SAFETY: handed on.
        unsafe { self.add_generic(out, graph, nodes, std::ptr::null(), count, params) }
    }

    pub unsafe fn set_generic(&self, node: CUgraphNode, params: *mut CUgraphNodeParams) -> Outcome {
        // SAFETY: handed on.
        let params = unsafe { generic(params.cast_const()) }?;
        // SAFETY: handed on.
        self.set(node, |old| unsafe { self.generic_params(&params, attributes_of(old)) })
    }
}

/// Returns the entry of a conditional handle. An inner graph has the handles of the outermost one, whichever of them they
/// were made for; it does not know those of other graphs (driver 580.159.04).
fn find_condition(state: &mut GraphState, graph: u32, handle: u64) -> Outcome<Option<&mut Condition>> {
    let owner = state.outermost(graph)?;
    Ok(state.graph_mut(owner)?.conditions.get_mut(&handle))
}

/// Checks that no node uses a handle yet: each is used by one node.
fn free_condition(state: &mut GraphState, graph: u32, handle: u64) -> Outcome {
    let condition = find_condition(state, graph, handle)?.filter(|condition| condition.node.is_none());
    condition.map(drop).ok_or(CUresult::ERROR_INVALID_VALUE)
}

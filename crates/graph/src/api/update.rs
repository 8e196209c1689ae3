//! Functions that change executable graphs: one node at a time, or by another graph of the same shape.

#![expect(unsafe_code, reason = "functions of the driver API take raw pointers")]

use std::sync::Arc;

use katydid_cuda_sys::{
    CUDA_BATCH_MEM_OP_NODE_PARAMS, CUDA_HOST_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS_v1,
    CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS, CUcontext, CUevent, CUgraph, CUgraphExec, CUgraphExecUpdateResultInfo,
    CUgraphNode, CUgraphNodeParams, CUresult, node_type, update_result,
};

use super::Graphs;
use super::nodes::attributes_of;
use super::params::{generic, modern};
use super::raw::{read, require_output, write};
use crate::backend::Backend;
use crate::graph::GraphState;
use crate::handles::{NodeId, node_handle, node_number};
use crate::outcome::Outcome;
use crate::params::Params;
use crate::plan::{Plan, PlanStep};
use crate::update::{Refusal, apply, replace, send_changes};

/// Every function: pointers are null or as the driver API documents them.
#[allow(clippy::missing_safety_doc, reason = "one contract for all functions of the driver API, stated above")]
#[allow(clippy::missing_errors_doc, missing_docs, reason = "functions of the driver API, under its codes")]
impl<B: Backend> Graphs<B> {
    fn kinds(&self, copy: &CUDA_MEMCPY3D, context: usize) -> Option<(u32, u32)> {
        self.backend.copy(copy, context).ok()
    }

    /// Changes one step, here and in the driver library; changes nothing if either refuses.
    pub(super) fn alter(
        &self,
        exec: CUgraphExec,
        node: CUgraphNode,
        change: impl FnOnce(&mut PlanStep) -> Outcome,
    ) -> Outcome {
        let node = node_number(node).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        self.ask(|state| {
            let id = state.exec_id(exec)?;
            let plan = &mut state.exec_mut(id)?.plan;
            let number = plan.number(node)?;
            let was = plan.find(node)?;
            let mut step = was.clone();
            change(&mut step)?;
            self.backend.change(id, number, was, &step)?;
            if let Some(slot) = Arc::make_mut(plan).find_mut(node) {
                *slot = step;
            }
            Ok(())
        })
    }

    fn set_step(
        &self,
        exec: CUgraphExec,
        node: CUgraphNode,
        params: impl FnOnce(&Params) -> Outcome<Params>,
    ) -> Outcome {
        self.alter(exec, node, |step| {
            let new = params(&step.params)?;
            let kinds = |copy: &CUDA_MEMCPY3D, context| self.kinds(copy, context);
            replace(step, &new, &kinds).map_err(|_| CUresult::ERROR_INVALID_VALUE)
        })
    }

    pub unsafe fn exec_kernel(
        &self,
        exec: CUgraphExec,
        node: CUgraphNode,
        params: *const CUDA_KERNEL_NODE_PARAMS,
    ) -> Outcome {
        // SAFETY: handed on.
        self.set_step(exec, node, |old| unsafe { self.described_kernel(&read(params)?, attributes_of(old)) })
    }

    pub unsafe fn exec_kernel_v1(
        &self,
        exec: CUgraphExec,
        node: CUgraphNode,
        params: *const CUDA_KERNEL_NODE_PARAMS_v1,
    ) -> Outcome {
        // SAFETY: handed on.
        self.set_step(exec, node, |old| unsafe { self.described_kernel(&modern(&read(params)?), attributes_of(old)) })
    }

    pub unsafe fn exec_copy(
        &self,
        exec: CUgraphExec,
        node: CUgraphNode,
        copy: *const CUDA_MEMCPY3D,
        context: CUcontext,
    ) -> Outcome {
        // SAFETY: handed on.
        self.set_step(exec, node, |_| self.copy_params(&unsafe { read(copy) }?, context))
    }

    pub unsafe fn exec_fill(
        &self,
        exec: CUgraphExec,
        node: CUgraphNode,
        fill: *const CUDA_MEMSET_NODE_PARAMS,
        context: CUcontext,
    ) -> Outcome {
        // SAFETY: handed on.
        self.set_step(exec, node, |_| self.fill_params(&unsafe { read(fill) }?, context))
    }

    pub unsafe fn exec_host(
        &self,
        exec: CUgraphExec,
        node: CUgraphNode,
        host: *const CUDA_HOST_NODE_PARAMS,
    ) -> Outcome {
        // SAFETY: handed on.
        self.set_step(exec, node, |_| self.host_params(&unsafe { read(host) }?))
    }

    pub unsafe fn exec_record(&self, exec: CUgraphExec, node: CUgraphNode, event: CUevent) -> Outcome {
        self.set_step(exec, node, |_| self.checked_event(event).map(Params::RecordEvent))
    }

    pub unsafe fn exec_wait(&self, exec: CUgraphExec, node: CUgraphNode, event: CUevent) -> Outcome {
        self.set_step(exec, node, |_| self.checked_event(event).map(Params::WaitEvent))
    }

    pub unsafe fn exec_batch(
        &self,
        exec: CUgraphExec,
        node: CUgraphNode,
        batch: *const CUDA_BATCH_MEM_OP_NODE_PARAMS,
    ) -> Outcome {
        // SAFETY: handed on.
        self.set_step(exec, node, |_| unsafe { self.batch_params(&read(batch)?) })
    }

    pub unsafe fn exec_child(&self, exec: CUgraphExec, node: CUgraphNode, child: CUgraph) -> Outcome {
        let node = node_number(node).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        self.ask(|state| {
            let (id, child) = (state.exec_id(exec)?, state.graph_id(child)?);
            let new = state.plan(child)?;
            let mut plan = Plan::clone(&state.exec(id)?.plan);
            let step = plan.find_mut(node).filter(|step| matches!(step.params, Params::Child(_)));
            let inner = step.and_then(|step| step.inner.first_mut()).ok_or(CUresult::ERROR_INVALID_VALUE)?;
            let kinds = |copy: &CUDA_MEMCPY3D, context| self.kinds(copy, context);
            let changed = apply(inner, &new, &kinds).map_err(|_| CUresult::ERROR_INVALID_VALUE)?;
            self.adopt(state, id, plan, &changed)
        })
    }

    /// Sends all changed steps to the driver library; then the plan becomes the executable graph's.
    fn adopt(&self, state: &mut GraphState, id: u32, plan: Plan, changed: &[NodeId]) -> Outcome {
        let exec = state.exec_mut(id)?;
        send_changes(changed, &exec.plan, &plan, |number, was, is| self.backend.change(id, number, was, is))?;
        exec.plan = Arc::new(plan);
        Ok(())
    }

    /// Sets parameters of any type; refuses those that belong to the type and cannot be replaced.
    pub unsafe fn exec_set(&self, exec: CUgraphExec, node: CUgraphNode, params: *mut CUgraphNodeParams) -> Outcome {
        // SAFETY: handed on.
        let params = unsafe { generic(params.cast_const()) }?;
        if params.type_ == node_type::GRAPH {
            let child = CUgraph(std::ptr::with_exposed_provenance_mut(params.payload[0] as usize));
            // SAFETY: handed on.
            return unsafe { self.exec_child(exec, node, child) };
        }
        // SAFETY: handed on.
        self.set_step(exec, node, |old| unsafe { self.generic_params(&params, attributes_of(old)) })
    }

    fn update_all(&self, exec: CUgraphExec, graph: CUgraph) -> Result<(), (CUresult, Refusal)> {
        let failed = |code: CUresult| (code, (update_result::ERROR, None));
        self.with(|state| {
            let (id, graph) = (state.exec_id(exec).map_err(failed)?, state.graph_id(graph).map_err(failed)?);
            let new = state.plan(graph).map_err(failed)?;
            let mut plan = state.exec(id).map(|exec| Plan::clone(&exec.plan)).map_err(failed)?;
            let kinds = |copy: &CUDA_MEMCPY3D, context| self.kinds(copy, context);
            let refused = |refusal| (CUresult::ERROR_GRAPH_EXEC_UPDATE_FAILURE, refusal);
            let changed = apply(&mut plan, &new, &kinds).map_err(refused)?;
            self.adopt(state, id, plan, &changed).map_err(failed)
        })
    }

    pub unsafe fn update(&self, exec: CUgraphExec, graph: CUgraph, info: *mut CUgraphExecUpdateResultInfo) -> Outcome {
        let updated = self.update_all(exec, graph);
        let (result, node) = updated.as_ref().map_or_else(|(_, refusal)| *refusal, |()| (update_result::SUCCESS, None));
        let error = node.map_or(CUgraphNode::NULL, node_handle);
        let answer = CUgraphExecUpdateResultInfo { result, errorNode: error, errorFromNode: CUgraphNode::NULL };
        // SAFETY: the contract of all functions here.
        unsafe { write(info, answer) };
        updated.map_err(|(code, _)| code)
    }

    pub unsafe fn update_v1(
        &self,
        exec: CUgraphExec,
        graph: CUgraph,
        node: *mut CUgraphNode,
        result: *mut u32,
    ) -> Outcome {
        require_output(result)?;
        let mut info = CUgraphExecUpdateResultInfo::default();
        // SAFETY: a local, and the contract of all functions here.
        unsafe {
            let updated = self.update(exec, graph, &mut info);
            write(node, info.errorNode);
            write(result, info.result);
            updated
        }
    }
}

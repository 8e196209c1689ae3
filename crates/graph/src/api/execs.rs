//! Functions on executable graphs: making, launching, ending them.

#![expect(unsafe_code, reason = "functions of the driver API take raw pointers")]

use std::ffi::c_char;
use std::sync::Arc;

use katydid_cuda_sys::{
    CUDA_GRAPH_INSTANTIATE_PARAMS, CUgraph, CUgraphExec, CUgraphNode, CUresult, CUstream, instantiate_flags,
    instantiate_result,
};

use super::Graphs;
use super::raw::{read, require_output, write};
use crate::backend::Backend;
use crate::exec::exec_handle;
use crate::handles::{node_handle, node_number};
use crate::instantiate::InstantiateError;
use crate::legality::UncapturedCall;
use crate::memory::OldStates;
use crate::outcome::Outcome;
use crate::params::Params;

/// Every function: pointers are null or as the driver API documents them.
#[allow(clippy::missing_safety_doc, reason = "one contract for all functions of the driver API, stated above")]
#[allow(clippy::missing_errors_doc, missing_docs, reason = "functions of the driver API, under its codes")]
impl<B: Backend> Graphs<B> {
    fn make(&self, graph: CUgraph, flags: u64, with_params: bool) -> Result<u32, InstantiateError> {
        let (id, graph, plan) = self.with(|state| {
            let graph = state.graph_id(graph)?;
            let plan = state.prepare(graph, flags, with_params)?;
            Ok::<_, InstantiateError>((state.new_id()?, graph, plan))
        })?;
        self.forbid(UncapturedCall::Unsafe)?;
        self.backend.instantiate(id, graph, &plan, flags)?;
        self.ask(|state| state.insert_exec(id, graph, plan, flags))?;
        Ok(id)
    }

    pub unsafe fn instantiate_with_flags(&self, out: *mut CUgraphExec, graph: CUgraph, flags: u64) -> Outcome {
        require_output(out)?;
        let id = self.make(graph, flags, false).map_err(|unfit| unfit.code)?;
        // SAFETY: the contract of all functions here.
        unsafe { write(out, exec_handle(id)) };
        Ok(())
    }

    /// Instantiates a graph. The log stays empty: the code tells everything.
    pub unsafe fn instantiate(
        &self,
        out: *mut CUgraphExec,
        graph: CUgraph,
        node: *mut CUgraphNode,
        log: *mut c_char,
        size: usize,
    ) -> Outcome {
        require_output(out)?;
        if size > 0 {
            // SAFETY: the contract of all functions here: the log has room for `size` characters.
            unsafe { write(log, 0) };
        }
        let result = self.make(graph, 0, false);
        // SAFETY: the contract of all functions here.
        unsafe {
            match result {
                Ok(id) => {
                    write(out, exec_handle(id));
                    write(node, CUgraphNode::NULL);
                    Ok(())
                }
                Err(unfit) => {
                    write(node, unfit.node.map_or(CUgraphNode::NULL, node_handle));
                    Err(unfit.code)
                }
            }
        }
    }

    pub unsafe fn instantiate_with_params(
        &self,
        out: *mut CUgraphExec,
        graph: CUgraph,
        params: *mut CUDA_GRAPH_INSTANTIATE_PARAMS,
    ) -> Outcome {
        require_output(out)?;
        // SAFETY: the contract of all functions here.
        let mut answer = unsafe { read(params.cast_const()) }?;
        let result = match self.may_upload(&answer) {
            Ok(()) => self.make(graph, answer.flags, true),
            Err(code) => Err(code.into()),
        };
        (answer.result_out, answer.hErrNode_out) = match &result {
            Ok(_) => (instantiate_result::SUCCESS, CUgraphNode::NULL),
            Err(unfit) => (unfit.result, unfit.node.map_or(CUgraphNode::NULL, node_handle)),
        };
        // SAFETY: as above.
        unsafe { write(params, answer) };
        let id = result.map_err(|unfit| unfit.code)?;
        let exec = exec_handle(id);
        if uploads(&answer)
            && let Err(code) = self.backend.upload(id, answer.hUploadStream)
        {
            // A caller that gets an error has no handle to end it by.
            // SAFETY: as above.
            let _ = unsafe { self.destroy_exec(exec) };
            return Err(code);
        }
        // SAFETY: as above.
        unsafe { write(out, exec) };
        Ok(())
    }

    /// Refuses an upload into an invalid or captured stream, before anything is made.
    fn may_upload(&self, requested: &CUDA_GRAPH_INSTANTIATE_PARAMS) -> Outcome {
        if uploads(requested) { self.refuse_captured(self.backend.stream(requested.hUploadStream)?) } else { Ok(()) }
    }

    pub unsafe fn exec_flags(&self, exec: CUgraphExec, out: *mut u64) -> Outcome {
        require_output(out)?;
        let flags = self.ask(|state| Ok(state.exec(state.exec_id(exec)?)?.flags))?;
        // SAFETY: the contract of all functions here.
        unsafe { write(out, flags) };
        Ok(())
    }

    pub unsafe fn upload(&self, exec: CUgraphExec, stream: CUstream) -> Outcome {
        let id = self.ask(|state| state.exec_id(exec))?;
        let capture = self.backend.stream(stream)?;
        self.refuse_captured(capture)?;
        self.backend.upload(id, stream)?;
        self.ask(|state| {
            let exec = state.exec(id)?;
            let (plan, has_memory) = (Arc::clone(&exec.plan), exec.has_memory);
            if has_memory {
                state.memory.run(id, &plan, capture.key);
            }
            Ok(())
        })
    }

    pub unsafe fn launch(&self, exec: CUgraphExec, stream: CUstream) -> Outcome {
        let id = self.ask(|state| state.exec_id(exec))?;
        let capture = self.backend.stream(stream)?;
        self.refuse_captured(capture)?;
        let (plan, old_states) = self.ask(|state| {
            let exec = state.exec(id)?;
            let (plan, flags) = (Arc::clone(&exec.plan), exec.flags);
            if !exec.has_memory {
                return Ok((plan, OldStates::default()));
            }
            let old_states = state.memory.launch(&plan, flags)?;
            state.memory.run(id, &plan, capture.key);
            Ok((plan, old_states))
        })?;
        let launched = self.backend.launch(id, &plan, stream);
        launched.inspect_err(|_| self.with(|state| state.memory.take_back(old_states)))
    }

    pub unsafe fn destroy_exec(&self, exec: CUgraphExec) -> Outcome {
        let id = self.ask(|state| state.exec_id(exec))?;
        self.forbid(UncapturedCall::Unsafe)?;
        self.ask(|state| state.remove_exec(id))?;
        self.backend.destroy(id)
    }

    pub unsafe fn set_enabled(&self, exec: CUgraphExec, node: CUgraphNode, enabled: u32) -> Outcome {
        self.alter(exec, node, |step| {
            may_be_disabled(&step.params)?;
            step.is_enabled = enabled != 0;
            Ok(())
        })
    }

    pub unsafe fn enabled(&self, exec: CUgraphExec, node: CUgraphNode, out: *mut u32) -> Outcome {
        require_output(out)?;
        let is_enabled = self.ask(|state| {
            let node = node_number(node).ok_or(CUresult::ERROR_INVALID_VALUE)?;
            let step = state.exec(state.exec_id(exec)?)?.plan.find(node)?;
            may_be_disabled(&step.params)?;
            Ok(step.is_enabled)
        })?;
        // SAFETY: the contract of all functions here.
        unsafe { write(out, u32::from(is_enabled)) };
        Ok(())
    }
}

/// Returns whether an instantiation also uploads its graph.
fn uploads(requested: &CUDA_GRAPH_INSTANTIATE_PARAMS) -> bool {
    requested.flags & u64::from(instantiate_flags::UPLOAD) != 0
}

/// Only kernels, copies and fills can be disabled.
fn may_be_disabled(params: &Params) -> Outcome {
    match params {
        Params::Kernel(_) | Params::Memcpy(_) | Params::Memset(_) => Ok(()),
        _ => Err(CUresult::ERROR_INVALID_VALUE),
    }
}

//! Instantiation of graphs: the checks, and the plan of the executable graph.

use std::collections::HashMap;
use std::sync::Arc;

use katydid_cuda_sys::{
    CUgraphEdgeData, CUgraphExec, CUresult, conditional_type, instantiate_flags, instantiate_result,
};

use crate::edges::is_memory;
use crate::exec::{Exec, exec_number};
use crate::graph::GraphState;
use crate::handles::{GraphId, NodeId};
use crate::outcome::Outcome;
use crate::params::Params;
use crate::plan::{Plan, PlanStep};

/// Why a graph cannot be instantiated: the code, the number in the result, and the node.
pub(crate) struct InstantiateError {
    pub(crate) code: CUresult,
    pub(crate) result: u32,
    pub(crate) node: Option<NodeId>,
}

impl From<CUresult> for InstantiateError {
    fn from(code: CUresult) -> Self {
        Self { code, result: instantiate_result::ERROR, node: None }
    }
}

/// Checks the flags of an instantiation.
fn check_flags(flags: u64, with_params: bool) -> Outcome {
    let upload = if with_params { instantiate_flags::UPLOAD } else { 0 };
    let plain = instantiate_flags::AUTO_FREE_ON_LAUNCH | instantiate_flags::USE_NODE_PRIORITY | upload;
    if flags & u64::from(instantiate_flags::DEVICE_LAUNCH) != 0 {
        return Err(CUresult::ERROR_NOT_SUPPORTED);
    }
    if flags & !u64::from(plain) == 0 { Ok(()) } else { Err(CUresult::ERROR_INVALID_VALUE) }
}

/// Returns whether a node may be in the body of a conditional node, at any depth.
fn fits_body(params: &Params) -> bool {
    matches!(
        params,
        Params::Kernel(_)
            | Params::Empty
            | Params::Child(_)
            | Params::Memset(_)
            | Params::Memcpy(_)
            | Params::Conditional(_)
    )
}

/// Checks the number of bodies of a conditional node, by its kind.
pub(crate) fn check_conditional(kind: u32, size: u32) -> Outcome {
    let fits = match kind {
        conditional_type::IF => (1..=2).contains(&size),
        conditional_type::WHILE => size == 1,
        conditional_type::SWITCH => size > 0,
        _ => false,
    };
    if fits { Ok(()) } else { Err(CUresult::ERROR_INVALID_VALUE) }
}

impl GraphState {
    /// Returns the number of a live executable graph.
    pub(crate) fn exec_id(&self, exec: CUgraphExec) -> Outcome<u32> {
        let id = exec_number(exec).filter(|id| self.execs.contains_key(id));
        id.ok_or(CUresult::ERROR_INVALID_VALUE)
    }

    pub(crate) fn exec(&self, id: u32) -> Outcome<&Exec> {
        self.execs.get(&id).ok_or(CUresult::ERROR_INVALID_VALUE)
    }

    pub(crate) fn exec_mut(&mut self, id: u32) -> Outcome<&mut Exec> {
        self.execs.get_mut(&id).ok_or(CUresult::ERROR_INVALID_VALUE)
    }

    /// Returns the plan of a graph as it is now.
    pub(crate) fn plan(&self, graph: GraphId) -> Outcome<Plan> {
        let nodes = &self.graph(graph)?.nodes;
        let position: HashMap<NodeId, usize> = nodes.iter().enumerate().map(|(at, node)| (*node, at)).collect();
        let mut steps = Vec::with_capacity(nodes.len());
        for id in nodes {
            let node = self.node(*id)?;
            let at = |(other, data): &(NodeId, CUgraphEdgeData)| {
                position.get(other).map(|at| (*at, *data)).ok_or(CUresult::ERROR_INVALID_VALUE)
            };
            let dependencies = node.dependencies.iter().map(at).collect::<Outcome<_>>()?;
            let inner = node.params.graphs().iter().map(|inner| self.plan(*inner)).collect::<Outcome<_>>()?;
            steps.push(PlanStep { node: *id, params: node.params.clone(), dependencies, is_enabled: true, inner });
        }
        Plan::new(steps)
    }

    /// Checks a graph and makes its plan.
    pub(crate) fn prepare(&self, graph: GraphId, flags: u64, with_params: bool) -> Result<Plan, InstantiateError> {
        check_flags(flags, with_params)?;
        let state = self.graph(graph)?;
        if state.captures > 0 {
            return Err(CUresult::ERROR_STREAM_CAPTURE_UNSUPPORTED.into());
        }
        if state.instances > 0 && self.any_node(graph, &|params| is_memory(params)) {
            return Err(CUresult::ERROR_NOT_SUPPORTED.into());
        }
        let plan = self.plan(graph).map_err(|code| InstantiateError {
            code,
            result: instantiate_result::INVALID_STRUCTURE,
            node: None,
        })?;
        if state.conditions.values().any(|condition| condition.node.is_none()) {
            let result = instantiate_result::CONDITIONAL_HANDLE_UNUSED;
            return Err(InstantiateError { code: CUresult::ERROR_INVALID_VALUE, result, node: None });
        }
        check_bodies(&plan)?;
        Ok(plan)
    }

    /// Adds an executable graph that the driver library has made.
    pub(crate) fn insert_exec(&mut self, id: u32, graph: GraphId, plan: Plan, flags: u64) -> Outcome {
        let source = self.graph_mut(graph)?;
        source.instances += 1;
        let objects = source.objects.clone();
        self.objects.retain_all(&objects);
        let launch_flags = u64::from(instantiate_flags::AUTO_FREE_ON_LAUNCH);
        let has_memory = plan.flat().iter().any(|step| is_memory(&step.params));
        let exec = Exec { plan: Arc::new(plan), graph, flags: flags & launch_flags, objects, has_memory };
        self.execs.insert(id, exec);
        Ok(())
    }

    /// Ends an executable graph.
    pub(crate) fn remove_exec(&mut self, id: u32) -> Outcome {
        let exec = self.execs.remove(&id).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        if let Ok(graph) = self.graph_mut(exec.graph) {
            graph.instances -= 1;
        }
        if exec.has_memory {
            self.memory.forget_exec(id);
        }
        self.objects.drop_all(&exec.objects);
        Ok(())
    }
}

fn check_bodies(plan: &Plan) -> Result<(), InstantiateError> {
    for step in &plan.steps {
        if matches!(step.params, Params::Conditional(_)) {
            let inside = step.inner.iter().flat_map(Plan::flat);
            if let Some(wrong) = inside.into_iter().find(|step| !fits_body(&step.params)) {
                let (code, result) = (CUresult::ERROR_INVALID_VALUE, instantiate_result::ERROR);
                return Err(InstantiateError { code, result, node: Some(wrong.node) });
            }
        }
        step.inner.iter().try_for_each(check_bodies)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Condition, Owner};

    fn refused(state: &GraphState, graph: GraphId, flags: u64) -> (CUresult, u32) {
        state.prepare(graph, flags, false).map_or_else(|unfit| (unfit.code, unfit.result), |_| (CUresult::SUCCESS, 0))
    }

    #[test]
    fn a_handle_without_a_node_keeps_a_graph_from_being_instantiated() {
        let mut state = GraphState::default();
        let graph = state.create(Owner::Program).unwrap();
        state.graph_mut(graph).unwrap().conditions.insert(1, Condition::default());
        assert_eq!(refused(&state, graph, 0), (CUresult::ERROR_INVALID_VALUE, 5));
    }

    #[test]
    fn a_graph_with_memory_has_one_instance_at_a_time() {
        let mut state = GraphState::default();
        let graph = state.create(Owner::Program).unwrap();
        state.add(graph, &[], Params::MemFree(0x1000)).unwrap();
        let plan = state.plan(graph).unwrap();
        state.insert_exec(77, graph, plan, 9).unwrap();
        assert_eq!(state.exec(77).unwrap().flags, 1);
        assert_eq!(refused(&state, graph, 0).0, CUresult::ERROR_NOT_SUPPORTED);
        state.remove_exec(77).unwrap();
        assert_eq!(refused(&state, graph, 0).0, CUresult::SUCCESS);
    }

    #[test]
    fn flags_and_sizes_have_bounds() {
        assert_eq!([0, 1, 8, 9].map(|flags| check_flags(flags, false).is_ok()), [true; 4]);
        assert_eq!(check_flags(2, false), Err(CUresult::ERROR_INVALID_VALUE));
        assert_eq!(check_flags(2, true), Ok(()));
        assert_eq!(check_flags(4, true), Err(CUresult::ERROR_NOT_SUPPORTED));
        let fits = |kind, size| check_conditional(kind, size).is_ok();
        assert!(fits(0, 1) && fits(0, 2) && fits(1, 1) && fits(2, 7));
        assert!(!fits(0, 0) && !fits(0, 3) && !fits(1, 2) && !fits(2, 0) && !fits(3, 1));
    }

    #[test]
    fn steps_come_in_the_order_of_their_nodes_and_run_in_one_that_keeps_dependencies() {
        let mut state = GraphState::default();
        let graph = state.create(Owner::Program).unwrap();
        let nodes: Vec<_> = (0..4).map(|_| state.add(graph, &[], Params::Empty).unwrap()).collect();
        let plain = CUgraphEdgeData::default();
        state.connect(graph, &[(nodes[3], nodes[0], plain), (nodes[0], nodes[2], plain)]).unwrap();
        let plan = state.plan(graph).unwrap();
        assert_eq!(plan.steps.iter().map(|step| step.node).collect::<Vec<_>>(), nodes);
        assert_eq!(plan.order, [1, 3, 0, 2]);
        state.connect(graph, &[(nodes[2], nodes[3], plain)]).unwrap();
        assert_eq!(state.plan(graph).err(), Some(CUresult::ERROR_INVALID_VALUE));
    }

    #[test]
    fn steps_inside_steps_are_numbered_with_them() {
        let mut state = GraphState::default();
        let (graph, inner) = (state.create(Owner::Program).unwrap(), state.create(Owner::Program).unwrap());
        let nested = state.add(inner, &[], Params::Empty).unwrap();
        state.add(graph, &[], Params::Child(inner)).unwrap();
        let last = state.add(graph, &[], Params::Empty).unwrap();
        let mut plan = state.plan(graph).unwrap();
        assert_eq!((plan.number(nested), plan.number(last)), (Ok(1), Ok(2)));
        plan.find_mut(nested).unwrap().is_enabled = false;
        assert!(!plan.find(nested).unwrap().is_enabled);
        assert!(plan.find_mut(99).is_none() && plan.find(99).is_err());
    }
}

//! The plan of an executable graph: the steps of a graph at its instantiation.

use katydid_cuda_sys::{CUgraphEdgeData, CUresult};

use crate::handles::NodeId;
use crate::outcome::Outcome;
use crate::params::Params;

/// A step of an executable graph, made from one node.
#[derive(Clone, Debug)]
pub struct PlanStep {
    /// The node that it was made from, by which the program names it.
    pub node: NodeId,
    /// Operation of the step, and its parameters.
    pub params: Params,
    /// Positions of the steps before it.
    pub dependencies: Vec<(usize, CUgraphEdgeData)>,
    /// Whether it is enabled; a disabled step only keeps the order.
    pub is_enabled: bool,
    /// Plans of the graphs that belong to it.
    pub inner: Vec<Plan>,
}

/// The steps of one graph, in the order in which its nodes were added.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Steps in the order in which the nodes were added.
    pub steps: Vec<PlanStep>,
    /// Positions in an order in which every step comes after those it depends on.
    pub order: Vec<usize>,
}

impl Plan {
    /// Makes a plan of steps.
    ///
    /// # Errors
    ///
    /// `ERROR_INVALID_VALUE` for a cycle.
    pub(crate) fn new(steps: Vec<PlanStep>) -> Outcome<Self> {
        let order = sorted(&steps).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        Ok(Self { steps, order })
    }

    /// Makes a plan of one step, without dependencies.
    pub(crate) fn of(node: NodeId, params: Params) -> Self {
        let step = PlanStep { node, params, dependencies: Vec::new(), is_enabled: true, inner: Vec::new() };
        Self { steps: vec![step], order: vec![0] }
    }

    /// Returns all steps with those of inner plans, each before the steps inside it; a step's number is its index here.
    pub fn flat(&self) -> Vec<&PlanStep> {
        let mut steps = Vec::new();
        for step in &self.steps {
            steps.push(step);
            step.inner.iter().for_each(|plan| steps.extend(plan.flat()));
        }
        steps
    }

    /// Returns the number of the step that was made from a node.
    pub(crate) fn number(&self, node: NodeId) -> Outcome<u32> {
        let index = self.flat().iter().position(|step| step.node == node);
        index.map(|number| number as u32).ok_or(CUresult::ERROR_INVALID_VALUE)
    }

    /// Returns the step that was made from a node.
    pub(crate) fn find(&self, node: NodeId) -> Outcome<&PlanStep> {
        self.flat().into_iter().find(|step| step.node == node).ok_or(CUresult::ERROR_INVALID_VALUE)
    }

    /// Like [`Plan::find`], for a change; none if no step was made from the node.
    pub(crate) fn find_mut(&mut self, node: NodeId) -> Option<&mut PlanStep> {
        for step in &mut self.steps {
            if step.node == node {
                return Some(step);
            }
            if let Some(inner_step) = step.inner.iter_mut().find_map(|plan| plan.find_mut(node)) {
                return Some(inner_step);
            }
        }
        None
    }

    /// Passes the parameters of every step to `see`.
    pub(crate) fn visit(&self, see: &mut dyn FnMut(&Params)) {
        self.flat().iter().for_each(|step| see(&step.params));
    }
}

/// Returns a topological order that prefers earlier steps; none for a cycle.
fn sorted(steps: &[PlanStep]) -> Option<Vec<usize>> {
    let mut missing: Vec<usize> = steps.iter().map(|step| step.dependencies.len()).collect();
    let mut dependents: Vec<Vec<usize>> = vec![Vec::new(); steps.len()];
    for (at, step) in steps.iter().enumerate() {
        for (dependency, _) in &step.dependencies {
            dependents.get_mut(*dependency)?.push(at);
        }
    }
    let mut order = Vec::with_capacity(steps.len());
    let mut ready: std::collections::BTreeSet<usize> = (0..steps.len()).filter(|at| missing[*at] == 0).collect();
    while let Some(at) = ready.pop_first() {
        order.push(at);
        for next in &dependents[at] {
            missing[*next] -= 1;
            if missing[*next] == 0 {
                ready.insert(*next);
            }
        }
    }
    (order.len() == steps.len()).then_some(order)
}

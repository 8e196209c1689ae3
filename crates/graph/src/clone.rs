//! Copies of graphs: for `cuGraphClone`, and for the graphs inside child-graph nodes.

use std::collections::HashMap;

use katydid_cuda_sys::CUresult;

use crate::edges::is_memory;
use crate::graph::{GraphState, Node, Owner};
use crate::handles::{GraphId, NodeId};
use crate::outcome::Outcome;
use crate::params::Params;

impl GraphState {
    /// Copies a graph with everything in it; refuses graphs with memory nodes, conditional nodes or handles.
    pub(crate) fn copy_graph(&mut self, original: GraphId, owner: Owner) -> Outcome<GraphId> {
        let unique = |params: &Params| is_memory(params) || matches!(params, Params::Conditional(_));
        if self.any_node(original, &unique) || !self.graph(original)?.conditions.is_empty() {
            return Err(CUresult::ERROR_NOT_SUPPORTED);
        }
        self.copy_checked(original, owner)
    }

    fn copy_checked(&mut self, original: GraphId, owner: Owner) -> Outcome<GraphId> {
        let copy = self.create(owner)?;
        let source = self.graph(original)?;
        let (nodes, roots, objects) = (source.nodes.clone(), source.roots.clone(), source.objects.clone());
        let mut clones: HashMap<NodeId, NodeId> = HashMap::new();
        for node in &nodes {
            clones.insert(*node, self.new_id()?);
        }
        let clone_of = |node: &NodeId| clones.get(node).copied().ok_or(CUresult::ERROR_INVALID_VALUE);
        for node in &nodes {
            let id = clone_of(node)?;
            let original = self.node(*node)?;
            let (mut params, dependencies, dependents) =
                (original.params.clone(), original.dependencies.clone(), original.dependents.clone());
            if let Params::Child(inner) = &mut params {
                *inner = self.copy_checked(*inner, Owner::Node(id))?;
            }
            let dependencies =
                dependencies.iter().map(|(node, data)| Ok((clone_of(node)?, *data))).collect::<Outcome<_>>()?;
            let dependents = dependents.iter().map(clone_of).collect::<Outcome<_>>()?;
            self.nodes.insert(id, Node { graph: copy, params, dependencies, dependents, source: Some(*node) });
        }
        self.objects.retain_all(&objects);
        let nodes = nodes.iter().map(clone_of).collect::<Outcome<_>>()?;
        let roots = roots.iter().map(clone_of).collect::<Outcome<_>>()?;
        let graph = self.graph_mut(copy)?;
        (graph.nodes, graph.roots, graph.objects, graph.source) = (nodes, roots, objects, Some(original));
        Ok(copy)
    }

    /// Returns the node of a copy that was made from `node`.
    pub(crate) fn find_in_copy(&self, node: NodeId, copy: GraphId) -> Outcome<NodeId> {
        let graph = self.graph(copy)?;
        let is_clone = |other: &&NodeId| self.nodes.get(other).is_some_and(|other| other.source == Some(node));
        graph.nodes.iter().find(is_clone).copied().ok_or(CUresult::ERROR_INVALID_VALUE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use katydid_cuda_sys::CUgraphEdgeData;

    #[test]
    fn a_copy_has_the_same_shape_and_other_nodes() {
        let mut state = GraphState::default();
        let inner = state.create(Owner::Program).unwrap();
        state.add(inner, &[], Params::Empty).unwrap();
        let outer = state.create(Owner::Program).unwrap();
        let first = state.add(outer, &[], Params::Empty).unwrap();
        let child = state.add(outer, &[(first, CUgraphEdgeData::default())], Params::Child(inner)).unwrap();
        let copy = state.copy_graph(outer, Owner::Program).unwrap();
        let (first_copy, child_copy) =
            (state.find_in_copy(first, copy).unwrap(), state.find_in_copy(child, copy).unwrap());
        assert_eq!(state.node(child_copy).unwrap().dependencies[0].0, first_copy);
        assert_eq!(state.graph(copy).unwrap().roots, [first_copy]);
        let nested = state.node(child_copy).unwrap().params.graphs()[0];
        assert_ne!(nested, inner);
        assert_eq!(state.graph(nested).unwrap().owner, Owner::Node(child_copy));
        assert_eq!(state.find_in_copy(first, outer), Err(CUresult::ERROR_INVALID_VALUE));
        state.destroy(copy).unwrap();
        assert_eq!(state.nodes.len(), 3);
    }

    #[test]
    fn memory_is_not_copied() {
        let mut state = GraphState::default();
        let graph = state.create(Owner::Program).unwrap();
        state.add(graph, &[], Params::MemFree(0x1000)).unwrap();
        assert_eq!(state.copy_graph(graph, Owner::Program), Err(CUresult::ERROR_NOT_SUPPORTED));
    }
}

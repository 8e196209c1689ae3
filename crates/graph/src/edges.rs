//! Dependencies between nodes of one graph. Cycles may be built; they are found when the graph is instantiated.

use std::collections::HashSet;

use katydid_cuda_sys::{CUgraphEdgeData, CUresult};

use crate::graph::{GraphState, check_data};
use crate::handles::{GraphId, NodeId};
use crate::outcome::Outcome;
use crate::params::Params;

/// An edge with its two nodes.
pub(crate) type Edge = (NodeId, NodeId, CUgraphEdgeData);

/// Returns whether two edges carry the same data.
pub(crate) fn same(edge: &CUgraphEdgeData, other: &CUgraphEdgeData) -> bool {
    (edge.from_port, edge.to_port, edge.type_) == (other.from_port, other.to_port, other.type_)
}

impl GraphState {
    /// Adds edges, all or none.
    pub(crate) fn connect(&mut self, graph: GraphId, edges: &[Edge]) -> Outcome {
        for (from, to, data) in edges {
            let (source, target) = (self.node(*from)?, self.node(*to)?);
            let own = source.graph == graph && target.graph == graph && from != to;
            if !own || source.dependents.contains(to) {
                return Err(CUresult::ERROR_INVALID_VALUE);
            }
            check_data(data, source.params.type_number(), target.params.type_number())?;
        }
        for (from, to, data) in edges {
            self.node_mut(*from)?.dependents.push(*to);
            self.node_mut(*to)?.dependencies.push((*from, *data));
            self.graph_mut(graph)?.roots.retain(|root| root != to);
        }
        Ok(())
    }

    /// Removes edges, all or none; those of memory nodes stay.
    pub(crate) fn disconnect(&mut self, graph: GraphId, edges: &[Edge], with_data: bool) -> Outcome {
        for (from, to, data) in edges {
            let (source, target) = (self.node(*from)?, self.node(*to)?);
            if is_memory(&source.params) || is_memory(&target.params) {
                return Err(CUresult::ERROR_NOT_SUPPORTED);
            }
            let exists = target
                .dependencies
                .iter()
                .any(|(node, edge_data)| node == from && (!with_data || same(edge_data, data)));
            if !exists || target.graph != graph {
                return Err(CUresult::ERROR_INVALID_VALUE);
            }
        }
        for (from, to, _) in edges {
            self.node_mut(*from)?.dependents.retain(|node| node != to);
            let target = self.node_mut(*to)?;
            target.dependencies.retain(|(node, _)| node != from);
            if target.dependencies.is_empty() {
                self.graph_mut(graph)?.roots.insert(0, *to);
            }
        }
        Ok(())
    }

    /// Returns all edges: by the node they leave, in the order in which nodes were added.
    pub(crate) fn edges(&self, graph: GraphId) -> Outcome<Vec<Edge>> {
        let mut edges = Vec::new();
        for from in &self.graph(graph)?.nodes {
            for to in &self.node(*from)?.dependents {
                edges.push((*from, *to, self.edge(*from, *to)?));
            }
        }
        Ok(edges)
    }

    /// Returns the data of an edge.
    pub(crate) fn edge(&self, from: NodeId, to: NodeId) -> Outcome<CUgraphEdgeData> {
        let edge = self.node(to)?.dependencies.iter().find(|(node, _)| *node == from);
        edge.map(|(_, data)| *data).ok_or(CUresult::ERROR_INVALID_VALUE)
    }

    /// Returns `nodes` and everything that comes before them.
    pub(crate) fn ancestors(&self, nodes: impl IntoIterator<Item = NodeId>) -> HashSet<NodeId> {
        let mut visited = HashSet::new();
        let mut open: Vec<_> = nodes.into_iter().collect();
        while let Some(node) = open.pop() {
            if visited.insert(node) {
                open.extend(
                    self.nodes.get(&node).into_iter().flat_map(|node| node.dependencies.iter().map(|edge| edge.0)),
                );
            }
        }
        visited
    }
}

/// Returns whether a node allocates or frees memory: its graph keeps its order around it.
pub(crate) fn is_memory(params: &Params) -> bool {
    matches!(params, Params::MemAlloc(_) | Params::MemFree(_))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Owner;

    const PLAIN: CUgraphEdgeData = CUgraphEdgeData { from_port: 0, to_port: 0, type_: 0, reserved: [0; 5] };
    const INVALID_VALUE: Outcome = Err(CUresult::ERROR_INVALID_VALUE);

    #[test]
    fn edges_are_listed_by_the_node_they_leave() {
        let mut state = GraphState::default();
        let graph = state.create(Owner::Program).unwrap();
        let nodes: Vec<_> = (0..4).map(|_| state.add(graph, &[], Params::Empty).unwrap()).collect();
        let of = |from: usize, to: usize| (nodes[from], nodes[to], PLAIN);
        state.connect(graph, &[of(0, 1), of(0, 2)]).unwrap();
        state.connect(graph, &[of(3, 0), of(0, 3)]).unwrap();
        let listed: Vec<_> = state.edges(graph).unwrap().iter().map(|edge| (edge.0, edge.1)).collect();
        let expected = [(0, 1), (0, 2), (0, 3), (3, 0)].map(|(from, to): (usize, usize)| (nodes[from], nodes[to]));
        assert_eq!(listed, expected);
        assert!(state.graph(graph).unwrap().roots.is_empty());
    }

    #[test]
    fn an_edge_is_added_once_and_removed_once() {
        let mut state = GraphState::default();
        let graph = state.create(Owner::Program).unwrap();
        let (first, second) =
            (state.add(graph, &[], Params::Empty).unwrap(), state.add(graph, &[], Params::Empty).unwrap());
        assert_eq!(state.connect(graph, &[(first, first, PLAIN)]), INVALID_VALUE);
        assert_eq!(state.connect(graph, &[(first, second, PLAIN)]), Ok(()));
        assert_eq!(state.connect(graph, &[(first, second, PLAIN)]), INVALID_VALUE);
        assert_eq!(state.disconnect(graph, &[(first, second, PLAIN)], true), Ok(()));
        assert_eq!(state.disconnect(graph, &[(first, second, PLAIN)], true), INVALID_VALUE);
        assert_eq!(state.graph(graph).unwrap().roots, [second, first]);
    }
}

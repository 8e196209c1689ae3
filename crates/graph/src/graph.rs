//! Graphs and their nodes: which exist, their order of creation, and their owners.
//!
//! The driver's code for a graph or node that does not exist is 1, not 400.

use std::collections::{BTreeMap, HashMap, HashSet};

use katydid_cuda_sys::{CUgraph, CUgraphEdgeData, CUgraphNode, CUresult, node_type};

use crate::captures::Captures;
use crate::exec::Exec;
use crate::handles::{GraphId, NodeId, graph_number, node_number};
use crate::memory::Memory;
use crate::objects::Objects;
use crate::outcome::Outcome;
use crate::params::{KeepAlive, Params};

/// `CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC`: only between kernels, from one of a kernel's own ports.
const PROGRAMMATIC_EDGE: u8 = 1;
/// The last port that a kernel has.
const LAST_KERNEL_PORT: u8 = 2;

/// The owner of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The program, which destroys it.
    Program,
    /// An active capture.
    Capture,
    /// A child-graph or conditional node.
    Node(NodeId),
}

/// A graph (`CUgraph`): its nodes, owner and references.
#[derive(Debug)]
pub(crate) struct Graph {
    pub(crate) owner: Owner,
    /// Nodes in the order in which they were added.
    pub(crate) nodes: Vec<NodeId>,
    /// Nodes without dependencies; the latest comes first, as the driver lists them.
    pub(crate) roots: Vec<NodeId>,
    /// The graph it is a clone of.
    pub(crate) source: Option<GraphId>,
    /// References to user objects.
    pub(crate) objects: BTreeMap<u32, u32>,
    /// Conditional handles made for it and for the graphs inside it, each with the node that uses it. Empty in an inner
    /// graph.
    pub(crate) conditions: BTreeMap<u64, Condition>,
    /// Number of captures that add to it.
    pub(crate) captures: u32,
    /// Number of live executable graphs made from it.
    pub(crate) instances: u32,
}

/// State of a conditional handle (`CUgraphConditionalHandle`).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Condition {
    /// The node that it controls.
    pub(crate) node: Option<NodeId>,
}

/// A node (`CUgraphNode`): its parameters and edges.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) graph: GraphId,
    pub(crate) params: Params,
    /// The nodes before it, in the order in which the edges were added.
    pub(crate) dependencies: Vec<(NodeId, CUgraphEdgeData)>,
    /// The nodes after it, in the same order.
    pub(crate) dependents: Vec<NodeId>,
    /// The node it was made from by cloning.
    pub(crate) source: Option<NodeId>,
}

/// All graphs and captures, under one lock.
#[derive(Debug, Default)]
pub struct GraphState {
    pub(crate) graphs: HashMap<GraphId, Graph>,
    pub(crate) nodes: HashMap<NodeId, Node>,
    pub(crate) execs: HashMap<u32, Exec>,
    pub(crate) captures: Captures,
    pub(crate) objects: Objects,
    pub(crate) memory: Memory,
    last: u32,
}

/// Refuses edge data that the nodes at its ends do not allow.
pub(crate) fn check_data(data: &CUgraphEdgeData, from: u32, to: u32) -> Outcome {
    let plain = data.from_port == 0 && data.type_ == 0;
    let kernels = from == node_type::KERNEL && to == node_type::KERNEL;
    let ports = kernels && data.from_port <= LAST_KERNEL_PORT && data.type_ <= PROGRAMMATIC_EDGE;
    let programmatic = data.type_ != PROGRAMMATIC_EDGE || data.from_port != 0;
    let clean = data.to_port == 0 && data.reserved == [0; 5];
    if clean && (plain || (ports && programmatic)) { Ok(()) } else { Err(CUresult::ERROR_INVALID_VALUE) }
}

impl GraphState {
    /// Returns a number that no graph, node or executable graph has had.
    pub(crate) fn new_id(&mut self) -> Outcome<u32> {
        self.last = self.last.checked_add(1).ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
        Ok(self.last)
    }

    /// Makes a new, empty graph.
    pub(crate) fn create(&mut self, owner: Owner) -> Outcome<GraphId> {
        let id = self.new_id()?;
        let graph = Graph {
            owner,
            nodes: Vec::new(),
            roots: Vec::new(),
            source: None,
            objects: BTreeMap::new(),
            conditions: BTreeMap::new(),
            captures: 0,
            instances: 0,
        };
        self.graphs.insert(id, graph);
        Ok(id)
    }

    /// Returns the number of a live graph.
    pub(crate) fn graph_id(&self, graph: CUgraph) -> Outcome<GraphId> {
        let id = graph_number(graph).filter(|id| self.graphs.contains_key(id));
        id.ok_or(CUresult::ERROR_INVALID_VALUE)
    }

    /// Returns the number of a live node.
    pub(crate) fn node_id(&self, node: CUgraphNode) -> Outcome<NodeId> {
        let id = node_number(node).filter(|id| self.nodes.contains_key(id));
        id.ok_or(CUresult::ERROR_INVALID_VALUE)
    }

    pub(crate) fn graph(&self, id: GraphId) -> Outcome<&Graph> {
        self.graphs.get(&id).ok_or(CUresult::ERROR_INVALID_VALUE)
    }

    pub(crate) fn graph_mut(&mut self, id: GraphId) -> Outcome<&mut Graph> {
        self.graphs.get_mut(&id).ok_or(CUresult::ERROR_INVALID_VALUE)
    }

    pub(crate) fn node(&self, id: NodeId) -> Outcome<&Node> {
        self.nodes.get(&id).ok_or(CUresult::ERROR_INVALID_VALUE)
    }

    pub(crate) fn node_mut(&mut self, id: NodeId) -> Outcome<&mut Node> {
        self.nodes.get_mut(&id).ok_or(CUresult::ERROR_INVALID_VALUE)
    }

    /// Refuses dependencies that are not in `graph`, or named twice, or of a kind that the nodes do not allow.
    pub(crate) fn check_dependencies(
        &self,
        graph: GraphId,
        dependencies: &[(NodeId, CUgraphEdgeData)],
        to: u32,
    ) -> Outcome {
        let mut nodes = HashSet::new();
        for (node, data) in dependencies {
            let other = self.node(*node)?;
            if other.graph != graph || !nodes.insert(*node) {
                return Err(CUresult::ERROR_INVALID_VALUE);
            }
            check_data(data, other.params.type_number(), to)?;
        }
        Ok(())
    }

    /// Adds a node after others of the same graph.
    pub(crate) fn add(
        &mut self,
        graph: GraphId,
        dependencies: &[(NodeId, CUgraphEdgeData)],
        params: Params,
    ) -> Outcome<NodeId> {
        self.check_dependencies(graph, dependencies, params.type_number())?;
        let id = self.new_id()?;
        let node = Node { graph, params, dependencies: dependencies.to_vec(), dependents: Vec::new(), source: None };
        for (other, _) in dependencies {
            self.node_mut(*other)?.dependents.push(id);
        }
        self.nodes.insert(id, node);
        let graph = self.graph_mut(graph)?;
        graph.nodes.push(id);
        if dependencies.is_empty() {
            graph.roots.insert(0, id);
        }
        Ok(id)
    }

    /// Returns memory that nodes before a new one after `dependencies` have freed for good, with at least `size` bytes on
    /// `device`: its address and the value that keeps it.
    pub(crate) fn freed_before(
        &self,
        graph: GraphId,
        dependencies: &[NodeId],
        size: u64,
        device: i32,
    ) -> Option<(u64, KeepAlive)> {
        let (mut earlier, mut left) = (HashSet::new(), dependencies.to_vec());
        while let Some(id) = left.pop() {
            if earlier.insert(id)
                && let Some(node) = self.nodes.get(&id)
            {
                left.extend(node.dependencies.iter().map(|(other, _)| *other));
            }
        }
        let nodes = || self.graphs.get(&graph).into_iter().flat_map(|graph| &graph.nodes);
        let params = |id: &NodeId| self.nodes.get(id).map(|node| &node.params);
        // Balance of allocations and frees of each address in this graph; with those that free it before the new node.
        let mut balance: HashMap<u64, (i64, KeepAlive)> = HashMap::new();
        for params in nodes().filter_map(params) {
            if let Params::MemAlloc(alloc) = params {
                balance.entry(alloc.params.dptr).or_insert_with(|| (0, alloc.memory.clone())).0 += 1;
            }
        }
        for params in earlier.iter().filter_map(params) {
            if let Params::MemFree(address) = params
                && let Some((count, _)) = balance.get_mut(address)
            {
                *count -= 1;
            }
        }
        let fits = |address: u64, count: i64| count == 0 && self.memory.fits(address, size, device);
        let free = balance.into_iter().filter(|(address, (count, _))| fits(*address, *count));
        free.min_by_key(|(address, _)| *address).map(|(address, (_, memory))| (address, memory))
    }

    /// Removes a node from its graph, with its edges and the graphs that belong to it.
    pub(crate) fn remove(&mut self, id: NodeId) -> Outcome {
        let (graph, dependents) = (self.node(id)?.graph, self.node(id)?.dependents.clone());
        let outermost = self.outermost(graph)?;
        for (other, _) in self.node(id)?.dependencies.clone() {
            self.node_mut(other)?.dependents.retain(|dependent| *dependent != id);
        }
        for other in dependents {
            let node = self.node_mut(other)?;
            node.dependencies.retain(|(dependency, _)| *dependency != id);
            if node.dependencies.is_empty() {
                self.graph_mut(graph)?.roots.insert(0, other);
            }
        }
        let owner = self.graph_mut(graph)?;
        owner.nodes.retain(|other| *other != id);
        owner.roots.retain(|other| *other != id);
        if let Some(node) = self.nodes.remove(&id) {
            node.params.graphs().iter().try_for_each(|inner| self.destroy(*inner))?;
        }
        let Self { graphs, nodes, .. } = self;
        let conditions = graphs.get_mut(&outermost).into_iter().flat_map(|graph| graph.conditions.values_mut());
        conditions.for_each(|condition| condition.node = condition.node.filter(|node| nodes.contains_key(node)));
        Ok(())
    }

    /// Ends a graph and everything in it. References to user objects are dropped.
    pub(crate) fn destroy(&mut self, id: GraphId) -> Outcome {
        let graph = self.graphs.remove(&id).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        for node in graph.nodes {
            if let Some(node) = self.nodes.remove(&node) {
                node.params.graphs().iter().try_for_each(|inner| self.destroy(*inner))?;
            }
        }
        self.objects.drop_all(&graph.objects);
        Ok(())
    }

    /// Returns the outermost graph that a graph is in.
    pub(crate) fn outermost(&self, graph: GraphId) -> Outcome<GraphId> {
        let mut at = graph;
        while let Owner::Node(node) = self.graph(at)?.owner {
            at = self.node(node)?.graph;
        }
        Ok(at)
    }

    /// Refuses a child for a node of `outer`: a graph cannot contain itself, or move into its own inside.
    pub(crate) fn check_child(&self, outer: GraphId, child: GraphId, moves: bool) -> Outcome {
        let inner = self.graph(child)?;
        let may_move = inner.owner == Owner::Program && inner.captures == 0 && self.outermost(outer)? != child;
        if outer != child && (may_move || !moves) { Ok(()) } else { Err(CUresult::ERROR_INVALID_VALUE) }
    }

    /// Returns whether `test` holds for a node of the graph or of one inside it.
    pub(crate) fn any_node(&self, graph: GraphId, test: &dyn Fn(&Params) -> bool) -> bool {
        let nodes = self.graphs.get(&graph).into_iter().flat_map(|graph| &graph.nodes);
        nodes
            .filter_map(|node| self.nodes.get(node))
            .any(|node| test(&node.params) || node.params.graphs().iter().any(|inner| self.any_node(*inner, test)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handles::{graph_handle, node_handle};

    const PLAIN: CUgraphEdgeData = CUgraphEdgeData { from_port: 0, to_port: 0, type_: 0, reserved: [0; 5] };
    const INVALID_VALUE: Outcome = Err(CUresult::ERROR_INVALID_VALUE);

    fn edge(node: NodeId) -> (NodeId, CUgraphEdgeData) {
        (node, CUgraphEdgeData::default())
    }

    #[test]
    fn roots_are_listed_with_the_latest_first() {
        let mut state = GraphState::default();
        let graph = state.create(Owner::Program).unwrap();
        let first = state.add(graph, &[], Params::Empty).unwrap();
        let second = state.add(graph, &[edge(first)], Params::Empty).unwrap();
        let third = state.add(graph, &[edge(first)], Params::Empty).unwrap();
        let fourth = state.add(graph, &[], Params::Empty).unwrap();
        assert_eq!(state.graph(graph).unwrap().roots, [fourth, first]);
        state.remove(first).unwrap();
        assert_eq!(state.graph(graph).unwrap().roots, [third, second, fourth]);
        assert_eq!(state.graph(graph).unwrap().nodes, [second, third, fourth]);
    }

    #[test]
    fn no_graph_moves_into_itself_or_its_inside() {
        let mut state = GraphState::default();
        let [outer, inner, other] = [(); 3].map(|()| state.create(Owner::Program).unwrap());
        let node = state.add(outer, &[], Params::Child(inner)).unwrap();
        state.graph_mut(inner).unwrap().owner = Owner::Node(node);
        let wrong = Err(CUresult::ERROR_INVALID_VALUE);
        assert_eq!([outer, inner].map(|at| state.check_child(at, outer, true)), [wrong; 2]);
        assert_eq!((state.check_child(outer, outer, false), state.check_child(inner, outer, false)), (wrong, Ok(())));
        assert_eq!((state.check_child(inner, other, true), state.check_child(other, inner, true)), (Ok(()), wrong));
    }

    #[test]
    fn handles_lead_to_what_lives_and_to_nothing_else() {
        let mut state = GraphState::default();
        let graph = state.create(Owner::Program).unwrap();
        let node = state.add(graph, &[], Params::Empty).unwrap();
        assert_eq!(state.graph_id(graph_handle(graph)), Ok(graph));
        assert_eq!(state.node_id(node_handle(node)), Ok(node));
        assert!(state.graph_id(CUgraph(node_handle(node).0)).is_err());
        assert!(state.graph_id(CUgraph::NULL).is_err());
        state.destroy(graph).unwrap();
        assert!(state.graph_id(graph_handle(graph)).is_err() && state.node_id(node_handle(node)).is_err());
    }

    #[test]
    fn only_kernels_have_ports() {
        let programmatic = CUgraphEdgeData { from_port: 1, type_: 1, ..PLAIN };
        assert_eq!(check_data(&programmatic, node_type::KERNEL, node_type::KERNEL), Ok(()));
        assert_eq!(check_data(&programmatic, node_type::KERNEL, node_type::EMPTY), INVALID_VALUE);
        assert_eq!(check_data(&CUgraphEdgeData { from_port: 9, ..PLAIN }, 0, 0), INVALID_VALUE);
        assert_eq!(check_data(&CUgraphEdgeData { to_port: 1, ..PLAIN }, 0, 0), INVALID_VALUE);
    }
}

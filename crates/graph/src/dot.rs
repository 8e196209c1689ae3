//! Drawings of graphs in the language of Graphviz, for `cuGraphDebugDotPrint`, in the driver's form (580.159.04, seen on an
//! H100 on 2026-11-28 for kernels, copies, fills, host functions, events, empty nodes and child graphs).
//!
//! A node has its number, and its type or, for a kernel, its name. Flags (`CUgraphDebugDot_flags`) add parameters: all of
//! them, or those of one type of node. An inner graph is drawn after the graph that it is in.

use std::collections::{HashMap, VecDeque};
use std::fmt::Write;

use katydid_cuda_sys::{CUDA_MEMCPY3D, dot_flags as flag, launch_attribute, memory_type};

use crate::graph::GraphState;
use crate::handles::{GraphId, NodeId, node_handle};
use crate::outcome::Outcome;
use crate::params::{Kernel, Memcpy, Memset, Params};

/// The flags of a drawing.
#[derive(Clone, Copy)]
struct DotFlags(u32);

impl DotFlags {
    /// Returns whether one of these flags is set, or the one for everything.
    fn has(self, flags: u32) -> bool {
        self.0 & (flags | flag::VERBOSE) != 0
    }
}

/// A node, with the data for its lines.
struct Drawn<'state> {
    /// Its place in the graph.
    at: usize,
    /// ` (topoId: 3)`, or nothing.
    order: String,
    id: NodeId,
    params: &'state Params,
}

impl GraphState {
    /// Returns the text of a drawing.
    pub(crate) fn draw(&self, graph: GraphId, flags: u32) -> Outcome<String> {
        let mut text = String::from("digraph dot {\n");
        self.draw_graph(&mut text, graph, DotFlags(flags))?;
        text.push_str("}\n");
        Ok(text)
    }

    fn draw_graph(&self, text: &mut String, graph: GraphId, flags: DotFlags) -> Outcome {
        let _ = writeln!(text, "subgraph cluster_{graph} {{\nlabel=\"graph_{graph}\" graph[style=\"dashed\"];");
        let nodes = &self.graph(graph)?.nodes;
        let indices: HashMap<NodeId, usize> = nodes.iter().enumerate().map(|(at, id)| (*id, at)).collect();
        let ordered = flags.has(flag::EXTRA_TOPO_INFO);
        let order = if ordered { self.order(nodes)? } else { HashMap::new() };
        for (at, id) in nodes.iter().enumerate() {
            let order = order.get(id).map_or_else(String::new, |order| format!(" (topoId: {order})"));
            let node = Drawn { at, order, id: *id, params: &self.node(*id)?.params };
            let _ = writeln!(text, "\"graph_{graph}_node_{at}\"[{}];\n", node.attributes(flags));
        }
        for (from, to, _) in self.edges(graph)? {
            let name =
                |node: &NodeId| format!("\"graph_{graph}_node_{}\"", indices.get(node).copied().unwrap_or_default());
            let number = self.node(to)?.dependencies.iter().position(|(node, _)| *node == from).unwrap_or_default();
            let label = if ordered { format!(" [headlabel={number}]") } else { String::new() };
            let _ = writeln!(text, "{} -> {}{label};", name(&from), name(&to));
        }
        text.push_str("}\n");
        let inner = nodes.iter().filter_map(|id| self.nodes.get(id)).flat_map(|node| node.params.graphs());
        inner.copied().collect::<Vec<_>>().into_iter().try_for_each(|inner| self.draw_graph(text, inner, flags))
    }

    /// Returns the place of each node in a topological order, from its end.
    fn order(&self, nodes: &[NodeId]) -> Outcome<HashMap<NodeId, usize>> {
        let mut left = HashMap::new();
        for id in nodes {
            left.insert(*id, self.node(*id)?.dependencies.len());
        }
        let mut ready: VecDeque<NodeId> = nodes.iter().filter(|id| left.get(id) == Some(&0)).copied().collect();
        let mut order = HashMap::new();
        while let Some(id) = ready.pop_front() {
            order.insert(id, nodes.len().saturating_sub(order.len() + 1));
            for dependent in &self.node(id)?.dependents {
                if let Some(count) = left.get_mut(dependent) {
                    *count = count.saturating_sub(1);
                    if *count == 0 {
                        ready.push_back(*dependent);
                    }
                }
            }
        }
        Ok(order)
    }
}

/// Returns a number as the driver writes addresses and handles.
fn hexadecimal(number: u64) -> String {
    format!("0x{number:016X}")
}

/// Returns text escaped for a label.
fn escaped(text: &str) -> String {
    text.chars().fold(String::new(), |mut out, letter| {
        if matches!(letter, '\\' | '"' | '{' | '}' | '<' | '>' | '|') {
            out.push('\\');
        }
        out.push(letter);
        out
    })
}

impl Drawn<'_> {
    /// Returns the attributes of the node, which stand between the brackets.
    fn attributes(&self, flags: DotFlags) -> String {
        match self.params {
            Params::Kernel(it) if flags.has(flag::KERNEL_NODE_ATTRIBUTES) => self.whole_kernel(it, flags),
            Params::Kernel(it) => {
                let launch = if flags.has(flag::KERNEL_NODE_PARAMS) { shape(it) } else { String::new() };
                self.plain("bold", "octagon\" ", &escaped(&it.name), flags, &launch)
            }
            Params::Memset(it) if flags.has(flag::MEMSET_NODE_PARAMS) => self.whole_fill(it, flags),
            Params::Memset(Memset { fill, .. }) => {
                let bytes = fill.width.saturating_mul(fill.height).saturating_mul(fill.elementSize as usize);
                let short = format!("({},{bytes})\n", fill.value);
                self.plain("solid", "invtrapezium\"", "MEMSET", flags, &short)
            }
            Params::Memcpy(it) if flags.has(flag::MEMCPY_NODE_PARAMS) => self.whole_copy(it, flags),
            Params::Memcpy(Memcpy { copy, .. }) => {
                let bytes = copy.WidthInBytes.saturating_mul(copy.Height).saturating_mul(copy.Depth);
                let short = format!("({},{bytes})\n", kind(copy).0);
                self.plain("solid", "trapezium\"", "MEMCPY", flags, &short)
            }
            Params::Child(graph) => self.plain("solid", "rectangle\" ", &format!("graph_{graph}"), flags, ""),
            params => self.plain("solid", "rectangle\" ", params.word(), flags, &details(params, flags)),
        }
    }

    /// Returns a label of lines: number, type or name, handles, and `more`.
    fn plain(&self, style: &str, shape: &str, word: &str, flags: DotFlags, more: &str) -> String {
        let Self { at, order, .. } = self;
        let mut handles = String::new();
        if flags.has(flag::HANDLES) {
            handles = format!("node handle: {}\n", self.handle());
            if let Params::Kernel(kernel) = self.params {
                handles.push_str(&format!("func handle: {}\n", function(kernel)));
            }
        }
        format!("style=\"{style}\" shape=\"{shape}label=\"{at}{order}\n{word}\n{handles}{more}\"")
    }

    fn handle(&self) -> String {
        hexadecimal(node_handle(self.id).0.addr() as u64)
    }

    /// Returns a kernel as a record, with its attributes.
    fn whole_kernel(&self, it: &Kernel, flags: DotFlags) -> String {
        let Self { at, order, .. } = self;
        let launch = if flags.has(flag::KERNEL_NODE_PARAMS) { shape(it) } else { String::new() };
        let handles = match flags.has(flag::HANDLES) {
            true => format!("| {{{{node handle | func handle}} | {{{} | {}}}}}\n", self.handle(), function(it)),
            false => String::new(),
        };
        let word = |id: u32, at: usize| it.attributes.get(&id).map_or(0, |value| value[at]);
        let window = launch_attribute::ACCESS_POLICY_WINDOW;
        let ratio = f32::from_bits(word(window, 2) as u32);
        let property = |value: u32| ["N", "S", "P"].get(value as usize).copied().unwrap_or("N");
        let properties = [(word(window, 2) >> 32) as u32, word(window, 3) as u32].map(property);
        format!(
            "style=\"bold\" shape=\"record\" label=\"{{KERNEL\n| {{ID | {at}{order} | {}{launch}}}\n{handles}\
             | {{accessPolicyWindow | {{base_ptr | num_bytes | hitRatio | hitProp | missProp}} | \
             {{{} | {} | {ratio:.6} | {} | {}}}}}\n| {{cooperative | {}}}\n| {{priority | {}}}\n}}\"",
            escaped(&it.name),
            hexadecimal(word(window, 0)),
            word(window, 1),
            properties[0],
            properties[1],
            word(launch_attribute::COOPERATIVE, 0) as u32,
            (word(launch_attribute::PRIORITY, 0) as u32).cast_signed(),
        )
    }

    /// Returns a fill as a record.
    fn whole_fill(&self, Memset { fill, .. }: &Memset, flags: DotFlags) -> String {
        let Self { at, order, .. } = self;
        let (title, handle) = match flags.has(flag::HANDLES) {
            true => ("node handle | ", format!("{} | ", self.handle())),
            false => ("", String::new()),
        };
        format!(
            "style=\"solid\" style=\"solid\" shape=\"record\" label=\"{{MEMSET\n| {{{{ID | {title}dptr | pitch | value | \
             elementSize | width | height}} | {{{at}{order} | {handle}{} | {} | {} | {} | {} | {}}}}}}}\"",
            hexadecimal(fill.dst),
            fill.pitch,
            fill.value,
            fill.elementSize,
            fill.width,
            fill.height
        )
    }

    /// Returns a copy as a record.
    fn whole_copy(&self, Memcpy { copy, .. }: &Memcpy, flags: DotFlags) -> String {
        let Self { at, order, .. } = self;
        let (title, handle) = match flags.has(flag::HANDLES) {
            true => (" | node handle", format!(" | {}", self.handle())),
            false => ("", String::new()),
        };
        let (short, long) = kind(copy);
        let source =
            side_address(copy.srcMemoryType, copy.srcHost.addr() as u64, copy.srcDevice, copy.srcArray.0.addr() as u64);
        let target =
            side_address(copy.dstMemoryType, copy.dstHost.addr() as u64, copy.dstDevice, copy.dstArray.0.addr() as u64);
        format!(
            "style=\"solid\" shape=\"record\" label=\"{{\nMEMCPY\n| {{{{ID{title}}} | {{{at}{order}{handle}}}}}\n\
             | {{kind | {short} ({long})}}\n\
             | {{{{srcPtr | dstPtr}} | {{pitch | ptr | xsize | ysize | pitch | ptr | xsize | ysize}} | \
             {{{} | {source} | 0 | {} | {} | {target} | 0 | {}}}}}\n\
             | {{{{srcPos | {{{{x | {}}} | {{y | {}}} | {{z | {}}}}}}} | {{dstPos | {{{{x | {}}} | {{y | {}}} | {{z | {}}}}}}} | \
             {{Extent | {{{{Width | {}}} | {{Height | {}}} | {{Depth | {}}}}}}}}}\n}}\"",
            copy.srcPitch,
            copy.srcHeight,
            copy.dstPitch,
            copy.dstHeight,
            copy.srcXInBytes,
            copy.srcY,
            copy.srcZ,
            copy.dstXInBytes,
            copy.dstY,
            copy.dstZ,
            copy.WidthInBytes,
            copy.Height,
            copy.Depth
        )
    }
}

/// Returns the function of a kernel, or the kernel itself.
fn function(it: &Kernel) -> String {
    hexadecimal(if it.function == 0 { it.kernel } else { it.function } as u64)
}

/// Returns grid, block and shared memory, as in a launch.
fn shape(it: &Kernel) -> String {
    let sizes = |[x, y, z]: [u32; 3]| match (y, z) {
        (1, 1) => x.to_string(),
        _ => format!("\\{{{x},{y},{z}\\}}"),
    };
    format!("\\<\\<\\<{},{},{}\\>\\>\\>", sizes(it.grid), sizes(it.block), it.shared)
}

/// Returns the kind of a copy, short and long.
fn kind(copy: &CUDA_MEMCPY3D) -> (String, String) {
    let side = |kind: u32| match kind {
        memory_type::HOST => ("H", "HOST"),
        memory_type::ARRAY => ("A", "ARRAY"),
        memory_type::UNIFIED => ("U", "UNIFIED"),
        _ => ("D", "DEVICE"),
    };
    let (from, to) = (side(copy.srcMemoryType), side(copy.dstMemoryType));
    (format!("{}to{}", from.0, to.0), format!("{} to {}", from.1, to.1))
}

/// Returns the address of one side of a copy.
fn side_address(kind: u32, host: u64, device: u64, array: u64) -> String {
    hexadecimal(match kind {
        memory_type::HOST => host,
        memory_type::ARRAY => array,
        _ => device,
    })
}

/// Returns the parameters of other nodes, in lines. Memory nodes, batches of memory operations and conditional nodes have
/// Katydid's own form: the driver's was not seen (`docs/explanation/graphs.md`).
fn details(params: &Params, flags: DotFlags) -> String {
    match params {
        Params::Host(it) if flags.has(flag::HOST_NODE_PARAMS) => {
            format!("fn: {}\nuserData: {}\n", hexadecimal(it.function as u64), hexadecimal(it.data as u64))
        }
        Params::WaitEvent(event) | Params::RecordEvent(event) if flags.has(flag::EVENT_NODE_PARAMS) => {
            format!("event: {}\n", hexadecimal(event.0.addr() as u64))
        }
        Params::MemAlloc(it) if flags.has(flag::MEM_ALLOC_NODE_PARAMS) => {
            format!("dptr: {}\nbytesize: {}\n", hexadecimal(it.params.dptr), it.params.bytesize)
        }
        Params::MemFree(address) if flags.has(flag::MEM_FREE_NODE_PARAMS) => {
            format!("dptr: {}\n", hexadecimal(*address))
        }
        Params::Batch(it) if flags.has(flag::BATCH_MEM_OP_NODE_PARAMS) => {
            format!("operations: {}\n", it.operations.len())
        }
        Params::Conditional(it) if flags.has(flag::CONDITIONAL_NODE_PARAMS) => {
            format!("handle: {}\ngraphs: {}\n", it.handle, it.bodies.len())
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Owner;
    use crate::params::{Arguments, Attributes, KeepAlive};
    use katydid_cuda_sys::{CUDA_MEMSET_NODE_PARAMS, CUgraphEdgeData};
    use std::sync::Arc;

    fn kernel() -> Params {
        Params::Kernel(Kernel {
            function: 0x10,
            kernel: 0,
            context: 1,
            grid: [2, 1, 1],
            block: [3, 1, 1],
            shared: 16,
            arguments: Arguments::new(Vec::new(), []),
            is_packed: false,
            attributes: Attributes::new(),
            name: "_Z8a_kernelPi".into(),
            code: KeepAlive(Arc::new(())),
        })
    }

    #[test]
    fn nodes_edges_and_inner_graphs_are_drawn() {
        let mut state = GraphState::default();
        let (outer, inner) = (state.create(Owner::Program).unwrap(), state.create(Owner::Program).unwrap());
        let first = state.add(outer, &[], Params::MemFree(0x10)).unwrap();
        state.add(outer, &[(first, CUgraphEdgeData::default())], Params::Child(inner)).unwrap();
        let text = state.draw(outer, 1).unwrap();
        assert_eq!(text.matches('{').count(), text.matches('}').count());
        for part in [
            "MEM_FREE\n",
            "dptr: 0x0000000000000010\n",
            "\"graph_1_node_0\" -> \"graph_1_node_1\" [headlabel=0];",
            "}\nsubgraph cluster_2",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        assert!(!state.draw(outer, 0).unwrap().contains("dptr"));
    }

    #[test]
    fn a_kernel_has_its_name_and_each_flag_adds_what_it_names() {
        let mut state = GraphState::default();
        let graph = state.create(Owner::Program).unwrap();
        state.add(graph, &[], kernel()).unwrap();
        state.add(graph, &[], Params::MemFree(0x1000)).unwrap();
        let has = |flags: u32| {
            let text = state.draw(graph, flags).unwrap();
            assert!(text.contains("_Z8a_kernelPi"), "{text}");
            [r"\<\<\<2,3,16\>\>\>", "dptr: 0x0000000000001000", "0x0000000000000010"].map(|part| text.contains(part))
        };
        assert_eq!(has(0), [false; 3]);
        assert_eq!(has(flag::KERNEL_NODE_PARAMS), [true, false, false]);
        assert_eq!(has(flag::MEM_FREE_NODE_PARAMS), [false, true, false]);
        assert_eq!(has(flag::HANDLES), [false, false, true]);
        assert_eq!(has(flag::VERBOSE), [true; 3]);
    }

    /// As driver 580.159.04 draws it.
    #[test]
    fn a_drawing_is_that_of_the_driver() {
        let mut state = GraphState::default();
        let graph = state.create(Owner::Program).unwrap();
        let first = state.add(graph, &[], kernel()).unwrap();
        let fill = CUDA_MEMSET_NODE_PARAMS { dst: 0x1000, pitch: 0, value: 0, elementSize: 1, width: 4, height: 1 };
        let edges = [(first, CUgraphEdgeData::default())];
        state.add(graph, &edges, Params::Memset(Memset { fill, context: 1 })).unwrap();
        let plain = "digraph dot {\nsubgraph cluster_1 {\nlabel=\"graph_1\" graph[style=\"dashed\"];\n\"graph_1_node_0\"\
            [style=\"bold\" shape=\"octagon\" label=\"0\n_Z8a_kernelPi\n\"];\n\n\"graph_1_node_1\"\
            [style=\"solid\" shape=\"invtrapezium\"label=\"1\nMEMSET\n(0,4)\n\"];\n\n\
            \"graph_1_node_0\" -> \"graph_1_node_1\";\n}\n}\n";
        assert_eq!(state.draw(graph, 0).unwrap(), plain);
        let attributes = "label=\"{KERNEL\n| {ID | 0 | _Z8a_kernelPi}\n| {accessPolicyWindow | {base_ptr | num_bytes | hitRatio | \
            hitProp | missProp} | {0x0000000000000000 | 0 | 0.000000 | N | N}}\n| {cooperative | 0}\n| {priority | 0}\n}\"];";
        let text = state.draw(graph, flag::KERNEL_NODE_ATTRIBUTES).unwrap();
        assert!(text.contains(attributes), "{text}");
        let record = "label=\"{MEMSET\n| {{ID | dptr | pitch | value | elementSize | width | height} | \
            {1 | 0x0000000000001000 | 0 | 0 | 1 | 4 | 1}}}\"];";
        let text = state.draw(graph, flag::MEMSET_NODE_PARAMS).unwrap();
        assert!(text.contains(record), "{text}");
        let text = state.draw(graph, flag::VERBOSE).unwrap();
        assert!(text.contains("{1 (topoId: 0) | 0x") && text.contains("0 (topoId: 1) | _Z8a_kernelPi"), "{text}");
    }
}

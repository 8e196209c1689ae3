//! Drawings of graphs in the language of Graphviz, for `cuGraphDebugDotPrint`.

use std::fmt::Write;

use crate::backend::Outcome;
use crate::graph::{GraphId, State};
use crate::params::Params;

/// Flag bits that ask for the parameters: everything, or those of some kind of node.
const DETAILS: u32 = 0x7fff;

impl State {
    /// The text of a drawing; a graph inside a node has a frame of its own.
    pub(crate) fn draw(&self, graph: GraphId, flags: u32) -> Outcome<String> {
        let mut text = String::from("digraph dot {\n");
        self.draw_graph(&mut text, graph, flags & DETAILS != 0)?;
        text.push_str("}\n");
        Ok(text)
    }

    fn draw_graph(&self, text: &mut String, graph: GraphId, details: bool) -> Outcome {
        let _ = writeln!(text, "subgraph cluster_{graph} {{\nlabel=\"graph_{graph}\" graph[style=\"dashed\"];");
        let nodes = &self.graph(graph)?.nodes;
        let place = |node| nodes.iter().position(|other| *other == node).unwrap_or_default();
        for (at, id) in nodes.iter().enumerate() {
            let params = &self.node(*id)?.params;
            let label = label(params, details);
            let _ =
                writeln!(text, "\"graph_{graph}_node_{at}\"[shape=\"{}\" label=\"{at}\\n{label}\"];", shape(params));
            params.graphs().iter().try_for_each(|inner| self.draw_graph(text, *inner, details))?;
        }
        for (from, to, _) in self.edges(graph)? {
            let _ = writeln!(text, "\"graph_{graph}_node_{}\" -> \"graph_{graph}_node_{}\";", place(from), place(to));
        }
        text.push_str("}\n");
        Ok(())
    }
}

fn shape(params: &Params) -> &'static str {
    match params {
        Params::Kernel(_) => "octagon",
        Params::Memcpy(_) => "trapezium",
        Params::Memset(_) => "invtrapezium",
        _ => "rectangle",
    }
}

fn label(params: &Params, details: bool) -> String {
    let word = params.word();
    if !details {
        return word.to_owned();
    }
    match params {
        Params::Kernel(it) => {
            let ([x, y, z], [a, b, c]) = (it.grid, it.block);
            format!("{word}\\ngrid {x},{y},{z} block {a},{b},{c} shared {}", it.shared)
        }
        Params::Memcpy(it) => {
            format!("{word}\\n{} x {} x {} bytes", it.copy.WidthInBytes, it.copy.Height, it.copy.Depth)
        }
        Params::Memset(it) => {
            let fill = &it.fill;
            format!("{word}\\n{:#x} x {} of {} bytes", fill.value, fill.width * fill.height, fill.elementSize)
        }
        Params::Host(it) => format!("{word}\\nfn {:#x} data {:#x}", it.function, it.data),
        Params::MemAlloc(it) => format!("{word}\\n{:#x}, {} bytes", it.params.dptr, it.params.bytesize),
        Params::MemFree(address) => format!("{word}\\n{address:#x}"),
        Params::Batch(it) => format!("{word}\\n{} operations", it.operations.len()),
        Params::Conditional(it) => format!("{word}\\nhandle {}", it.handle),
        _ => word.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Owner;
    use katydid_cuda_sys::CUgraphEdgeData;

    #[test]
    fn nodes_edges_and_inner_graphs_are_drawn() {
        let mut state = State::default();
        let (outer, inner) = (state.create(Owner::Program).unwrap(), state.create(Owner::Program).unwrap());
        let first = state.add(outer, &[], Params::MemFree(0x10)).unwrap();
        state.add(outer, &[(first, CUgraphEdgeData::default())], Params::Child(inner)).unwrap();
        let text = state.draw(outer, 1).unwrap();
        assert_eq!(text.matches('{').count(), text.matches('}').count());
        for part in ["MEM_FREE\\n0x10", "\"graph_1_node_0\" -> \"graph_1_node_1\"", "cluster_2"] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        assert!(!state.draw(outer, 0).unwrap().contains("0x10"));
    }
}

//! Launches of graphs: chains of empty kernels, waited for.

use crate::cuda::Cuda;
use crate::sampling::{Body, Samples, each};

/// Nodes of a chain, and the key.
const CHAIN_NODES: [(u32, &str); 3] = [(1, "graph_1"), (100, "graph_100"), (10_000, "graph_10000")];

pub(super) fn measure(body: &mut Body) {
    for (nodes, key) in CHAIN_NODES {
        // As many kernels in all, whatever a chain has of them.
        let repetitions = (body.plan.repetitions / nodes).clamp(3, body.plan.repetitions / 4);
        let samples = body.with_kernel(|| launched(&body.cuda, nodes, repetitions));
        body.note(key, samples);
    }
}

fn launched(cuda: &Cuda, nodes: u32, repetitions: u32) -> Samples {
    let graph = cuda.chain(nodes)?;
    each(repetitions, || graph.launch().and_then(|()| cuda.synchronise()))
}

//! Launches of graphs that are chains of empty kernels, with the wait for them.

use crate::cuda::Cuda;
use crate::sampling::{Body, Samples, each};

/// Numbers of nodes, with their keys.
const CHAIN_NODES: [(u32, &str); 3] = [(1, "graph_1"), (100, "graph_100"), (10_000, "graph_10000")];

pub(super) fn measure(body: &mut Body) {
    for (nodes, key) in CHAIN_NODES {
        // Every chain length runs the same total of kernels.
        let repetitions = (body.plan.repetitions / nodes).clamp(3, body.plan.repetitions / 4);
        let samples = body.with_kernel(|| launched(&body.cuda, nodes, repetitions));
        body.note(key, samples);
    }
}

fn launched(cuda: &Cuda, nodes: u32, repetitions: u32) -> Samples {
    let graph = cuda.chain(nodes)?;
    each(repetitions, || graph.launch().and_then(|()| cuda.synchronize()))
}

//! Graphs and stream capture: the shared model over this library's objects, and execution of graphs on the CPU.
//!
//! An executable graph is only a plan. Each launch makes tasks of it (`tasks`), and one job of the stream runs these (`run`),
//! branches in parallel. Launches of the same executable graph run one after the other, in whatever streams they are.

mod backend;
pub(crate) mod capture;
pub(crate) mod captures;
pub(crate) mod condition;
mod prepared;
mod run;
mod tasks;
mod volume;

use std::sync::LazyLock;

use katydid_graph::{Graphs, UncapturedCall};

use crate::ffi::Outcome;

pub(crate) use backend::SoftBackend;

/// The graphs of this process.
pub(crate) fn of_process() -> &'static Graphs<SoftBackend> {
    static GRAPHS: LazyLock<Graphs<SoftBackend>> = LazyLock::new(|| Graphs::with_store(SoftBackend, captures::store()));
    &GRAPHS
}

/// Refuses calls that might wait, or change what others rely on, while a stream capture forbids them.
pub(crate) fn forbid() -> Outcome {
    of_process().forbid(UncapturedCall::Unsafe)
}

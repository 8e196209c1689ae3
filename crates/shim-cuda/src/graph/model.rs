//! The model of this process's graphs and captures; its backend is in `backend`.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use katydid_cuda_sys::CUresult;
use katydid_graph::{Graphs, UncapturedCall};

use crate::context::stack;

/// The shim as a backend of graphs.
#[derive(Debug, Default)]
pub(crate) struct RemoteBackend {
    /// Tokens of the program's operations, by executable graph.
    tokens: Mutex<HashMap<u32, Vec<u64>>>,
}

impl RemoteBackend {
    pub(super) fn tokens(&self) -> MutexGuard<'_, HashMap<u32, Vec<u64>>> {
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn tokens_of(&self, exec: u32) -> Vec<u64> {
        self.tokens().get(&exec).cloned().unwrap_or_default()
    }
}

/// The graphs of this process.
#[inline]
pub(crate) fn of_process() -> &'static Graphs<RemoteBackend> {
    static GRAPHS: LazyLock<Graphs<RemoteBackend>> = LazyLock::new(|| Graphs::new(RemoteBackend::default()));
    &GRAPHS
}

/// Refuses calls that might wait, or change state that others rely on, while a stream capture forbids it.
pub(crate) fn forbid() -> Result<(), CUresult> {
    of_process().forbid(UncapturedCall::Unsafe)
}

/// Refuses to wait for the current context while a stream capture forbids it.
pub(crate) fn forbid_context() -> Result<(), CUresult> {
    match of_process().is_quiet() {
        true => Ok(()),
        false => of_process().forbid(UncapturedCall::Context(stack::active()?.slot.handle)),
    }
}

//! Registered functions of the program that have not returned yet.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};

use katydid_client::upcalls;
use katydid_cuda_sys::{CUresult, CUstream};

use crate::graph::host_work;
use crate::launch::stream_queues::StreamQueues;

/// A function that is to run once.
#[derive(Clone, Copy)]
pub(crate) enum PendingFunction {
    /// A function of `cuLaunchHostFunc`, with its data.
    Host(unsafe extern "C" fn(*mut c_void), usize),
    /// A function of `cuStreamAddCallback`, with its stream and data.
    Stream(unsafe extern "C" fn(CUstream, CUresult, *mut c_void), usize, usize),
}

/// Registered functions that have not run yet.
#[derive(Default)]
pub(crate) struct Registry {
    /// The functions, with the wire ids of their streams' contexts.
    functions: upcalls::Registry<(u32, PendingFunction)>,
    /// Number of registered functions that have not returned yet.
    pending: AtomicUsize,
    /// The streams that will call them.
    streams: StreamQueues,
    /// Contexts and streams with launched graphs that call the program, and the count of messages after the last launch.
    graphs: Mutex<HashMap<(u32, u32), u64>>,
    /// Number of entries in `graphs`: calls check it first.
    graph_count: AtomicUsize,
}

static HOST_FUNCTIONS: LazyLock<Registry> = LazyLock::new(Registry::default);

/// Returns the functions of this process that have not run yet.
#[inline]
pub(crate) fn upcalls() -> &'static Registry {
    &HOST_FUNCTIONS
}

impl Registry {
    /// Adds a function that is about to be queued in a stream, by the stream's key, and its context's wire id.
    pub(crate) fn add(&self, function: PendingFunction, stream: u64, context: u32) -> u64 {
        let token = self.new_token();
        self.streams.begin(stream, token);
        self.functions.insert(token, (context, function));
        self.pending.fetch_add(1, Ordering::AcqRel);
        token
    }

    /// Returns a new, unique token.
    pub(crate) fn new_token(&self) -> u64 {
        self.functions.new_token()
    }

    /// Forgets the functions of a context that ended, by its wire id: those that its streams have not reached are not called
    /// any more, as after a fault.
    pub(crate) fn context_ended(&self, context: u32) {
        self.functions.remove_if(|(of, _)| *of == context).into_iter().for_each(|token| self.ended(token));
    }

    /// Notes that a function has returned, or will not be called.
    pub(crate) fn ended(&self, token: u64) {
        self.streams.end(token);
        self.pending.fetch_sub(1, Ordering::AcqRel);
    }

    /// Notes a launch of a graph with host nodes in a stream; `epoch` counts the messages up to the launch.
    pub(crate) fn launched(&self, stream: (u32, u32), epoch: u64) {
        self.change_graphs(|graphs| {
            graphs.insert(stream, epoch);
        });
    }

    /// Notes that everything sent up to `epoch` is done.
    pub(crate) fn completed(&self, epoch: u64) {
        if self.graph_count.load(Ordering::Acquire) > 0 {
            self.change_graphs(|graphs| graphs.retain(|_, last| *last > epoch));
        }
    }

    /// Notes that everything sent to a stream up to `epoch` is done.
    pub(crate) fn passed(&self, stream: (u32, u32), epoch: u64) {
        if self.graph_count.load(Ordering::Acquire) > 0 {
            self.change_graphs(|graphs| graphs.retain(|of, last| *of != stream || *last > epoch));
        }
    }

    fn change_graphs(&self, change: impl FnOnce(&mut HashMap<(u32, u32), u64>)) {
        let mut graphs = self.graphs.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut graphs);
        self.graph_count.store(graphs.len(), Ordering::Release);
    }

    /// Returns whether registered functions have not returned yet, except those of graphs.
    #[inline]
    pub(crate) fn has_pending_functions(&self) -> bool {
        self.pending.load(Ordering::Acquire) > 0
    }

    /// Returns the streams that will call them.
    pub(crate) fn streams(&self) -> &StreamQueues {
        &self.streams
    }

    /// Removes and returns the function of a token, which is about to run or will not be called.
    pub(crate) fn take(&self, token: u64) -> Option<PendingFunction> {
        self.functions.take(token).map(|(_, function)| function)
    }

    /// Starts the thread that calls functions, unless it runs already; false if the system refuses a thread.
    pub(crate) fn run_thread(&self, serve: fn()) -> bool {
        self.functions.run_thread(serve)
    }
}

/// Returns whether a stream may still call the program: a function, or its part of a graph.
pub(crate) fn may_call_back() -> bool {
    let upcalls = upcalls();
    let of_graphs = || upcalls.graph_count.load(Ordering::Acquire) > 0 || host_work::operations().are_expected();
    upcalls.has_pending_functions() || of_graphs()
}

#[cfg(test)]
#[expect(unsafe_code, reason = "functions of the program are unsafe to call")]
mod tests {
    use super::*;

    #[test]
    fn functions_of_a_context_end_with_it() {
        unsafe extern "C" fn nothing(_: *mut c_void) {}
        let registry = Registry::default();
        let tokens = [1, 2, 1].map(|context| registry.add(PendingFunction::Host(nothing, 0), 7, context));
        assert!(registry.take(tokens[2]).is_some(), "it runs");
        registry.context_ended(1);
        assert!(registry.take(tokens[0]).is_none() && registry.has_pending_functions());
        registry.ended(tokens[2]);
        registry.context_ended(2);
        assert!(registry.take(tokens[1]).is_none() && !registry.has_pending_functions());
    }

    #[test]
    fn tokens_are_never_zero() {
        let registry = Registry::default();
        unsafe extern "C" fn nothing(_: *mut c_void) {}
        assert_eq!(registry.add(PendingFunction::Host(nothing, 0), 1, 1), 1);
    }
}

//! Upcalls: functions of the program that run when a stream comes to them.
//!
//! One thread runs them all, in the order in which the worker asks; the stream stands still until the function has
//! returned. The thread is started by the first registration, so most programs never have it. It takes no signals.
#![expect(unsafe_code, reason = "calls functions of the program")]

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use katydid_client::threads;
use katydid_cuda_sys::{CUhostFn, CUresult, CUstream, CUstreamCallback};
use katydid_transport::bypass_gate;
use katydid_wire::message::{kdHostFunction, kdStreamCallback, kdUpcallNext, kdUpcallsBegin};

use crate::context::{device, stack};
use crate::ffi::guard::enqueue;
use crate::graph::capture;
use crate::launch::backpressure;
use crate::memory::pinned;
use crate::process::session::{Shim, shim};
use crate::sync::stream;

/// The program's functions expect a stack of the usual size.
const STACK: usize = 8 << 20;

/// A function that is to run once.
#[derive(Clone, Copy)]
enum Due {
    /// Of `cuLaunchHostFunc`, with its data.
    Host(unsafe extern "C" fn(*mut c_void), usize),
    /// Of `cuStreamAddCallback`, with its stream and data.
    Stream(unsafe extern "C" fn(CUstream, CUresult, *mut c_void), usize, usize),
}

#[derive(Default)]
struct State {
    last_token: u64,
    /// Functions by token, and the wire ids of their streams' contexts.
    functions: HashMap<u64, (u32, Due)>,
}

/// What was registered and has not run yet.
#[derive(Default)]
pub(crate) struct Registry {
    due: Mutex<State>,
    /// Functions that were registered and have not returned yet.
    pending: AtomicUsize,
    /// The streams that will come to them.
    streams: backpressure::Streams,
    /// Contexts and streams in which a graph was launched that comes to the program, and the count of messages after the last one.
    graphs: Mutex<HashMap<(u32, u32), u64>>,
    /// How many they are: calls look at that first.
    graph_count: AtomicUsize,
}

impl Registry {
    fn due(&self) -> MutexGuard<'_, State> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a function that a stream is about to be given, by the stream's key, and its context's wire id.
    fn add(&self, due: Due, stream: u64, context: u32) -> u64 {
        let token = self.mint();
        self.streams.begin(stream, token);
        self.due().functions.insert(token, (context, due));
        self.pending.fetch_add(1, Ordering::AcqRel);
        token
    }

    /// A token that nothing else has.
    fn mint(&self) -> u64 {
        let mut state = self.due();
        state.last_token += 1;
        state.last_token
    }

    /// A context has ended, whose wire id is given: functions that its streams have not come to are not called any more, as after a
    /// fault.
    pub(crate) fn context_ended(&self, context: u32) {
        let left: Vec<u64> =
            self.due().functions.extract_if(|_, (of, _)| *of == context).map(|(token, _)| token).collect();
        left.into_iter().for_each(|token| self.ended(token));
    }

    /// A function has returned, or will not be called.
    fn ended(&self, token: u64) {
        self.streams.end(token);
        self.pending.fetch_sub(1, Ordering::AcqRel);
    }

    /// A graph that comes to the program has been launched in a stream by the last of so many messages.
    pub(crate) fn launched(&self, stream: (u32, u32), epoch: u64) {
        self.change_graphs(|graphs| {
            graphs.insert(stream, epoch);
        });
    }

    /// Everything sent up to `epoch` is done.
    pub(crate) fn settled(&self, epoch: u64) {
        if self.graph_count.load(Ordering::Acquire) > 0 {
            self.change_graphs(|graphs| graphs.retain(|_, last| *last > epoch));
        }
    }

    /// The same of what was sent to a stream.
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

    /// Whether functions were registered that have not returned yet; those of graphs not counted.
    pub(crate) fn are_functions_due(&self) -> bool {
        self.pending.load(Ordering::Acquire) > 0
    }

    /// The streams that will come to them.
    pub(crate) fn streams(&self) -> &backpressure::Streams {
        &self.streams
    }

    fn take(&self, token: u64) -> Option<Due> {
        self.due().functions.remove(&token).map(|(_, due)| due)
    }
}

/// Whether a stream may still come to the program: to a function, or to its part of a graph.
pub(crate) fn may_come(shim: &Shim) -> bool {
    let of_graphs = || shim.upcalls.graph_count.load(Ordering::Acquire) > 0 || shim.parts.are_expected();
    shim.upcalls.are_functions_due() || of_graphs()
}

/// # Safety
///
/// `function` is null, or may be called once with `data`, from any thread.
pub(crate) unsafe fn launch_host_function(
    stream: CUstream,
    function: CUhostFn,
    data: *mut c_void,
) -> Result<(), CUresult> {
    let function = function.ok_or(CUresult::ERROR_INVALID_VALUE)?;
    stack::wire()?;
    if capture::host(stream, function as *const () as usize, data.expose_provenance())? {
        return Ok(());
    }
    backpressure::take_place(stream)?;
    let wire = stream::wire(stream)?;
    let token = register(Due::Host(function, data.expose_provenance()), stream)?;
    enqueue(&kdHostFunction { stream: wire, token }).inspect_err(|_| unregister(token))?;
    SENT.tell();
    Ok(())
}

/// # Safety
///
/// `callback` is null, or may be called once with the stream, its status and `data`, from any thread.
pub(crate) unsafe fn add_stream_callback(
    stream: CUstream,
    callback: CUstreamCallback,
    data: *mut c_void,
    flags: u32,
) -> Result<(), CUresult> {
    let wire = stream::wire(stream)?;
    let callback = callback.filter(|_| flags == 0).ok_or(CUresult::ERROR_INVALID_VALUE)?;
    stack::wire()?;
    backpressure::take_place(stream)?;
    let due = Due::Stream(callback, stream.0.expose_provenance(), data.expose_provenance());
    let token = register(due, stream)?;
    enqueue(&kdStreamCallback { stream: wire, token }).inspect_err(|_| unregister(token))?;
    SENT.tell();
    Ok(())
}

/// Forgets a function that was not queued.
fn unregister(token: u64) {
    if let Ok(shim) = shim()
        && shim.upcalls.take(token).is_some()
    {
        shim.upcalls.ended(token);
    }
}

/// A token for something that the worker will ask for time and again.
pub(crate) fn new_token() -> Result<u64, CUresult> {
    Ok(shim()?.upcalls.mint())
}

/// Sees to it that the worker's requests are answered, also those of graphs.
pub(crate) fn begin() -> Result<(), CUresult> {
    run_thread()?;
    enqueue(&kdUpcallsBegin {})?;
    SENT.tell();
    Ok(())
}

/// Notes a function, and sees to it that the thread runs.
fn register(due: Due, stream: CUstream) -> Result<u64, CUresult> {
    run_thread()?;
    let (place, context) = (stream::place(stream)?, stream::context_of(stream)?.owner());
    Ok(shim()?.upcalls.add(due, place.key, context.wire()))
}

fn run_thread() -> Result<(), CUresult> {
    static THREAD: OnceLock<bool> = OnceLock::new();
    let shim = shim()?;
    let started = THREAD.get_or_init(|| threads::start("katydid-upcall", STACK, move || serve(shim)).is_ok());
    if *started { Ok(()) } else { Err(CUresult::ERROR_OPERATING_SYSTEM) }
}

/// Whether the worker knows of a function. Only then may this side's thread speak: what it sends passes a hold, because the
/// GPU may be waiting for the function, and nothing may pass a hold that the worker does not wait for.
struct Sent(Mutex<bool>, Condvar);

static SENT: Sent = Sent(Mutex::new(false), Condvar::new());

impl Sent {
    fn tell(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.1.notify_all();
    }

    fn wait(&self) {
        let mut sent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while !*sent {
            sent = self.1.wait(sent).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Asks for what is due until the session ends.
fn serve(shim: &Shim) {
    SENT.wait();
    bypass_gate();
    let mut done = 0;
    while let Ok(next) = shim.session.ask(0, &kdUpcallNext { done }) {
        // On stream links, what the GPU wrote before this point has to be in the program's memory.
        let _ = pinned::pull_for_function();
        if let Some(part) = shim.parts.get(next.token) {
            // SAFETY: the program promised it for every launch of the graph that the part is of.
            let _ = unsafe { part.run(next.token) };
            shim.parts.done(next.token);
        } else if let Some(due) = shim.upcalls.take(next.token) {
            // SAFETY: registered for this call, and taken out of the registry, so called once.
            unsafe { run(due, CUresult(next.status)) };
            shim.upcalls.ended(next.token);
        }
        // And what the function wrote, in the GPU's.
        let _ = pinned::push_used();
        done = next.token;
    }
}

/// # Safety
///
/// The program's function may be called, by the contract of its registration.
unsafe fn run(due: Due, status: CUresult) {
    match due {
        // SAFETY: by the contract.
        Due::Host(function, data) => unsafe { function(std::ptr::with_exposed_provenance_mut(data)) },
        Due::Stream(callback, stream, data) => {
            let data = std::ptr::with_exposed_provenance_mut(data);
            // SAFETY: by the contract.
            unsafe { callback(CUstream(device::handle(stream)), status, data) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_is_taken_once() {
        unsafe extern "C" fn note(data: *mut c_void) {
            // SAFETY: the test passes the address of a number.
            unsafe { *data.cast::<u32>() += 1 };
        }
        let mut count = 0u32;
        let registry = Registry::default();
        let token = registry.add(Due::Host(note, (&raw mut count).expose_provenance()), 1, 1);
        assert!(registry.take(token + 1).is_none());
        let due = registry.take(token).unwrap();
        assert!(registry.take(token).is_none());
        // SAFETY: `note` takes the number's address.
        unsafe { run(due, CUresult::SUCCESS) };
        assert_eq!(count, 1);
    }

    #[test]
    fn functions_of_a_context_end_with_it() {
        unsafe extern "C" fn nothing(_: *mut c_void) {}
        let registry = Registry::default();
        let tokens = [1, 2, 1].map(|context| registry.add(Due::Host(nothing, 0), 7, context));
        assert!(registry.take(tokens[2]).is_some(), "it runs");
        registry.context_ended(1);
        assert!(registry.take(tokens[0]).is_none() && registry.are_functions_due());
        registry.ended(tokens[2]);
        registry.context_ended(2);
        assert!(registry.take(tokens[1]).is_none() && !registry.are_functions_due());
    }

    #[test]
    fn tokens_are_never_zero() {
        let registry = Registry::default();
        unsafe extern "C" fn nothing(_: *mut c_void) {}
        assert_eq!(registry.add(Due::Host(nothing, 0), 1, 1), 1);
    }
}

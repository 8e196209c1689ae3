//! Upcalls: functions of the program that run when a stream reaches them.
//!
//! One thread runs them all, in the order of the worker's requests; the stream waits until the function has returned. The
//! first registration starts the thread, so most programs never have it. It takes no signals.
#![expect(unsafe_code, reason = "calls functions of the program")]

use std::ffi::c_void;
use std::sync::{Condvar, Mutex, PoisonError};

use katydid_cuda_sys::{CUhostFn, CUresult, CUstream, CUstreamCallback};
use katydid_transport::bypass_gate;
use katydid_wire::message::{kdHostFunction, kdStreamCallback, kdUpcallNext, kdUpcallsBegin};

use crate::context::request::enqueue;
use crate::context::stack;
use crate::ffi::arguments;
use crate::graph::{capture, host_work};
use crate::launch::backpressure;
use crate::launch::registry::{self, PendingFunction};
use crate::memory::pinned;
use crate::process::session::shim;
use crate::sync::stream;

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
    backpressure::take_slot(stream)?;
    let wire = stream::wire(stream)?;
    let token = register(PendingFunction::Host(function, data.expose_provenance()), stream)?;
    enqueue(&kdHostFunction { stream: wire, token }).inspect_err(|_| unregister(token))?;
    UPCALL_GATE.mark_sent();
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
    backpressure::take_slot(stream)?;
    let pending = PendingFunction::Stream(callback, stream.0.expose_provenance(), data.expose_provenance());
    let token = register(pending, stream)?;
    enqueue(&kdStreamCallback { stream: wire, token }).inspect_err(|_| unregister(token))?;
    UPCALL_GATE.mark_sent();
    Ok(())
}

/// Forgets a function that was not queued.
fn unregister(token: u64) {
    let upcalls = registry::upcalls();
    if upcalls.take(token).is_some() {
        upcalls.ended(token);
    }
}

/// Makes sure that the worker's requests are answered, also those of graphs.
pub(crate) fn begin() -> Result<(), CUresult> {
    run_thread()?;
    enqueue(&kdUpcallsBegin {})?;
    UPCALL_GATE.mark_sent();
    Ok(())
}

/// Registers a function, and makes sure that the thread runs.
fn register(pending: PendingFunction, stream: CUstream) -> Result<u64, CUresult> {
    run_thread()?;
    let (capture_stream, context) = (stream::capture_stream(stream)?, stream::context_of(stream)?.owner());
    Ok(registry::upcalls().add(pending, capture_stream.key, context.wire()))
}

fn run_thread() -> Result<(), CUresult> {
    shim()?;
    if registry::upcalls().run_thread(serve) { Ok(()) } else { Err(CUresult::ERROR_OPERATING_SYSTEM) }
}

/// Whether the worker knows of a function. Only then may the upcall thread send. Its frames pass a hold, because the GPU may
/// be waiting for the function, and a frame may pass a hold only if the worker waits for it.
struct UpcallGate(Mutex<bool>, Condvar);

static UPCALL_GATE: UpcallGate = UpcallGate(Mutex::new(false), Condvar::new());

impl UpcallGate {
    fn mark_sent(&self) {
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

/// Asks the worker for due functions until the session ends.
fn serve() {
    let Ok(shim) = shim() else { return };
    UPCALL_GATE.wait();
    bypass_gate();
    let (upcalls, operations) = (registry::upcalls(), host_work::operations());
    let mut done = 0;
    while let Ok(next) = shim.session.ask(0, &kdUpcallNext { done }) {
        // On stream links, earlier writes of the GPU have to be in the program's memory.
        let _ = pinned::pull_for_function();
        if let Some(operation) = operations.get(next.token) {
            // SAFETY: the program promised it for every launch of the graph that the operation is of.
            let _ = unsafe { operation.run(next.token) };
            operations.complete(next.token);
        } else if let Some(pending) = upcalls.take(next.token) {
            // SAFETY: registered for this call, and taken out of the registry, so called once.
            unsafe { run(pending, CUresult(next.status)) };
            upcalls.ended(next.token);
        }
        // And writes of the function have to be in the GPU's.
        let _ = pinned::push_used();
        done = next.token;
    }
}

/// # Safety
///
/// The program's function may be called, by the contract of its registration.
unsafe fn run(pending: PendingFunction, status: CUresult) {
    match pending {
        // SAFETY: by the contract.
        PendingFunction::Host(function, data) => unsafe { function(std::ptr::with_exposed_provenance_mut(data)) },
        PendingFunction::Stream(callback, stream, data) => {
            let data = std::ptr::with_exposed_provenance_mut(data);
            // SAFETY: by the contract.
            unsafe { callback(CUstream(arguments::handle(stream)), status, data) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::registry::Registry;

    #[test]
    fn a_function_is_taken_once() {
        unsafe extern "C" fn note(data: *mut c_void) {
            // SAFETY: the test passes the address of a number.
            unsafe { *data.cast::<u32>() += 1 };
        }
        let mut count = 0u32;
        let registry = Registry::default();
        let token = registry.add(PendingFunction::Host(note, (&raw mut count).expose_provenance()), 1, 1);
        assert!(registry.take(token + 1).is_none());
        let pending = registry.take(token).unwrap();
        assert!(registry.take(token).is_none());
        // SAFETY: `note` takes the number's address.
        unsafe { run(pending, CUresult::SUCCESS) };
        assert_eq!(count, 1);
    }
}

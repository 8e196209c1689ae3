//! Callbacks: functions of the program that run when the worker says that they are due.
//!
//! One thread runs them all, in the order in which they are due. It is started by the first registration, so most
//! programs never have it, and takes no signals. What commands have read is in the program's memory before a callback
//! runs that may tell of it.
#![expect(unsafe_code, reason = "calls functions of the program")]

use std::collections::HashMap;
use std::ffi::CString;
use std::ptr;
use std::sync::{Mutex, OnceLock, PoisonError};

use katydid_client::threads;
use katydid_opencl_sys::{Code, char, cl_command_queue, cl_event, cl_mem, cl_program, void};
use katydid_wire::opencl::message::kdclUpcallNext;

use crate::objects::event::Event;
use crate::objects::handle::{HeldObject, Object};
use crate::objects::program::Program;
use crate::objects::svm;
use crate::process::host::Block;
use crate::process::shim::{Shim, shim};
use crate::transfers::pending_reads;

/// The program's functions expect a stack of the usual size.
const STACK: usize = 8 << 20;

type Notify = unsafe extern "C" fn(*const char, *const void, usize, *mut void);
type EventNotify = unsafe extern "C" fn(cl_event, i32, *mut void);
type MemoryNotify = unsafe extern "C" fn(cl_mem, *mut void);
type ProgramNotify = unsafe extern "C" fn(cl_program, *mut void);
type SvmFree = unsafe extern "C" fn(cl_command_queue, u32, *mut *mut void, *mut void);

/// A function that is to be called, with the program's data for it.
pub(crate) enum Call {
    /// Of a context: may be called many times.
    Context(Notify, usize),
    /// Of an event, which stays until then.
    Event(EventNotify, HeldObject<Event>, usize),
    /// Of a memory object's end: the handle is a number by then.
    Memory(MemoryNotify, usize, usize),
    /// Of a build's end.
    Program(ProgramNotify, HeldObject<Program>, usize),
    /// Frees shared virtual memory when its turn has come, which an event says: by the program's function, or by itself.
    SvmFree(Option<SvmFree>, HeldObject<Event>, Vec<usize>, usize),
    /// Memory of a buffer that the driver has destroyed.
    Block(Block),
}

/// What was registered and has not run yet, by token.
#[derive(Default)]
pub(crate) struct Registry {
    calls: Mutex<(u64, HashMap<u64, Call>)>,
}

/// Notes a function, and sees to it that the thread runs. The token is never 0.
pub(crate) fn register(call: Call) -> Result<u64, Code> {
    let shim = shim()?;
    run_thread(shim)?;
    let mut calls = shim.upcalls.calls.lock().unwrap_or_else(PoisonError::into_inner);
    calls.0 += 1;
    let token = calls.0;
    calls.1.insert(token, call);
    Ok(token)
}

/// Forgets a function that the worker was not told of.
pub(crate) fn forget(token: u64) {
    if let Ok(shim) = shim() {
        let forgotten = shim.upcalls.calls.lock().unwrap_or_else(PoisonError::into_inner).1.remove(&token);
        // Its objects are let go of outside of the lock.
        drop(forgotten);
    }
}

/// Runs a function on this thread, of which the worker has said in a reply that it is due.
pub(crate) fn run_now(token: u64) {
    let Ok(shim) = shim() else { return };
    let call = shim.upcalls.calls.lock().unwrap_or_else(PoisonError::into_inner).1.remove(&token);
    if let Some(call) = call {
        // SAFETY: registered for this call, and taken out of the registry.
        unsafe { run(call, 0, Vec::new()) };
    }
}

fn run_thread(shim: &'static Shim) -> Result<(), Code> {
    static THREAD: OnceLock<bool> = OnceLock::new();
    let started = THREAD.get_or_init(|| threads::start("katydid-upcall", STACK, move || serve(shim)).is_ok());
    if *started { Ok(()) } else { Err(Code::OUT_OF_HOST_MEMORY) }
}

/// Asks for what is due until the session ends.
fn serve(shim: &Shim) {
    while let Ok(next) = shim.link.call(&kdclUpcallNext {}) {
        let _ = pending_reads::settle();
        let call = {
            let mut calls = shim.upcalls.calls.lock().unwrap_or_else(PoisonError::into_inner);
            match calls.1.get(&next.token) {
                Some(Call::Context(function, data)) => Some(Call::Context(*function, *data)),
                _ => calls.1.remove(&next.token),
            }
        };
        if let Some(call) = call {
            // SAFETY: registered for this call, and taken out of the registry if it may be called once only.
            unsafe { run(call, next.status, next.text) };
        }
    }
}

/// # Safety
///
/// The program's function may be called, by the contract of its registration.
unsafe fn run(call: Call, status: i32, text: Vec<u8>) {
    let data = ptr::with_exposed_provenance_mut::<void>;
    match call {
        Call::Context(function, user) => {
            let text = CString::new(text).unwrap_or_default();
            // SAFETY: by the contract; the text lives as long as the call.
            unsafe { function(text.as_ptr(), ptr::null(), 0, data(user)) }
        }
        // SAFETY: by the contract.
        Call::Event(function, event, user) => unsafe { function(event.handle(), status, data(user)) },
        // SAFETY: by the contract.
        Call::Memory(function, memory, user) => unsafe { function(cl_mem(data(memory)), data(user)) },
        // SAFETY: by the contract.
        Call::Program(function, program, user) => unsafe { function(program.handle(), data(user)) },
        Call::SvmFree(Some(function), event, addresses, user) => {
            let mut list: Vec<*mut void> = addresses.into_iter().map(data).collect();
            // SAFETY: by the contract; the list lives as long as the call.
            unsafe { function(event.queue(), list.len() as u32, list.as_mut_ptr(), data(user)) }
        }
        Call::Block(block) => block.free(),
        Call::SvmFree(None, _, addresses, _) => addresses.into_iter().for_each(|address| {
            let _ = svm::free(address);
        }),
    }
}

//! Callbacks: functions of the program that run when the worker reports them as due.
//!
//! One thread runs them all, in the order in which they are due. The first registration starts it, so most programs never have
//! it; it takes no signals. Before a callback runs that may report a command's end, the data that commands read is in the
//! program's memory.

use std::ffi::{CStr, CString};
use std::sync::{Arc, LazyLock};

use katydid_client::upcalls::Registry;
use katydid_opencl_sys::Code;
use katydid_wire::opencl::message::kdclUpcallNext;

use crate::host::pending_reads;
use crate::process::session;

/// A function to be called, with the program's data for it.
pub(crate) enum CallbackCall {
    /// May be called many times, with a text.
    Repeated(Arc<dyn Fn(&CStr) + Send + Sync>),
    /// Is called once, with a status.
    Once(Box<dyn FnOnce(i32) + Send>),
}

impl CallbackCall {
    /// Wraps a function that is called once.
    pub(crate) fn once(function: impl FnOnce(i32) + Send + 'static) -> Self {
        Self::Once(Box::new(function))
    }

    /// Returns the function again, if it may be called several times.
    fn again(&self) -> Option<Self> {
        match self {
            Self::Repeated(function) => Some(Self::Repeated(Arc::clone(function))),
            Self::Once(_) => None,
        }
    }

    fn run(self, status: i32, text: Vec<u8>) {
        match self {
            Self::Repeated(function) => function(&CString::new(text).unwrap_or_default()),
            Self::Once(function) => function(status),
        }
    }
}

/// Registered functions that have not run yet.
static CALLBACK_CALLS: LazyLock<Registry<CallbackCall>> = LazyLock::new(Registry::default);

/// Registers a function, and starts the thread if needed. The token is never 0.
pub(crate) fn register(call: CallbackCall) -> Result<u64, Code> {
    if !CALLBACK_CALLS.run_thread(serve) {
        return Err(Code::OUT_OF_HOST_MEMORY);
    }
    Ok(CALLBACK_CALLS.add(call))
}

/// Removes a function that the worker does not know of.
pub(crate) fn forget(token: u64) {
    drop(CALLBACK_CALLS.take(token));
}

/// Runs a function on this thread when a reply of the worker said that it is due.
pub(crate) fn run_now(token: u64) {
    if let Some(call) = CALLBACK_CALLS.take(token) {
        call.run(0, Vec::new());
    }
}

/// Fetches and runs due callbacks until the session ends.
fn serve() {
    while let Ok(next) = session::call(&kdclUpcallNext {}) {
        let _ = pending_reads::deliver();
        if let Some(call) = CALLBACK_CALLS.copy_or_take(next.token, CallbackCall::again) {
            call.run(next.status, next.text);
        }
    }
}

//! Callbacks: functions of the program that run when the worker says that they are due.
//!
//! One thread runs them all, in the order in which they are due. It is started by the first registration, so most
//! programs never have it, and takes no signals. What commands have read is in the program's memory before a callback
//! runs that may tell of it.

use std::ffi::{CStr, CString};
use std::sync::{Arc, LazyLock};

use katydid_client::upcalls::Registry;
use katydid_opencl_sys::Code;
use katydid_wire::opencl::message::kdclUpcallNext;

use crate::host::pending_reads;
use crate::process::session;

/// A function that is to be called, with the program's data for it.
pub(crate) enum CallbackCall {
    /// May be called many times, with a text.
    Repeated(Arc<dyn Fn(&CStr) + Send + Sync>),
    /// Is called once, with a status.
    Once(Box<dyn FnOnce(i32) + Send>),
}

impl CallbackCall {
    /// A function that is called once.
    pub(crate) fn once(function: impl FnOnce(i32) + Send + 'static) -> Self {
        Self::Once(Box::new(function))
    }

    /// The function once more, if it may be called again.
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

/// What was registered and has not run yet.
static CALLBACK_CALLS: LazyLock<Registry<CallbackCall>> = LazyLock::new(Registry::default);

/// Notes a function, and sees to it that the thread runs. The token is never 0.
pub(crate) fn register(call: CallbackCall) -> Result<u64, Code> {
    if !CALLBACK_CALLS.run_thread(serve) {
        return Err(Code::OUT_OF_HOST_MEMORY);
    }
    Ok(CALLBACK_CALLS.add(call))
}

/// Forgets a function that the worker does not know of.
pub(crate) fn forget(token: u64) {
    drop(CALLBACK_CALLS.take(token));
}

/// Runs a function on this thread, of which the worker has said in a reply that it is due.
pub(crate) fn run_now(token: u64) {
    if let Some(call) = CALLBACK_CALLS.take(token) {
        call.run(0, Vec::new());
    }
}

/// Asks for what is due until the session ends.
fn serve() {
    while let Ok(next) = session::call(&kdclUpcallNext {}) {
        let _ = pending_reads::deliver();
        if let Some(call) = CALLBACK_CALLS.copy_or_take(next.token, CallbackCall::again) {
            call.run(next.status, next.text);
        }
    }
}

//! Behaviour of the driver as a program sees it, through the functions of the API.
//!
//! All these tests share a process, so each works in its own context on its own thread. They also share the device's addresses.
//! Freed memory may become another test's allocation a moment later, so no test touches it.

#![expect(unsafe_code, reason = "functions of the driver API take raw pointers")]

mod code;
mod contexts;
mod launches;
mod links;
mod managed;
mod memory;
mod pools;
mod streams;

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use katydid_cuda_sys::{CUcontext, CUevent, CUresult, CUstream};

use crate::api::*;

/// A context that is current on the test's thread, and destroyed at its end.
struct TestContext(CUcontext);

impl TestContext {
    fn new() -> Self {
        let mut context = CUcontext::NULL;
        // SAFETY: a local.
        unsafe {
            ok(cuInit(0));
            ok(cuCtxCreate_v2(&mut context, 0, 0));
        }
        Self(context)
    }
}

impl Drop for TestContext {
    fn drop(&mut self) {
        // SAFETY: a handle by value.
        let _ = unsafe { cuCtxDestroy_v2(self.0) };
    }
}

/// The call must have succeeded.
#[track_caller]
fn ok(code: CUresult) {
    assert_eq!(code, CUresult::SUCCESS);
}

fn stream(flags: u32) -> CUstream {
    let mut stream = CUstream::NULL;
    // SAFETY: a local.
    ok(unsafe { cuStreamCreate(&mut stream, flags) });
    stream
}

fn event() -> CUevent {
    let mut event = CUevent::NULL;
    // SAFETY: a local.
    ok(unsafe { cuEventCreate(&mut event, 0) });
    event
}

fn device_memory(size: usize) -> u64 {
    let mut address = 0;
    // SAFETY: a local.
    ok(unsafe { cuMemAlloc_v2(&mut address, size) });
    address
}

/// A host function that holds its stream until the test releases it, and reports when the stream reaches it.
struct StreamGate {
    go: Sender<()>,
    reached: Receiver<()>,
}

type Inside = (Receiver<()>, Sender<()>);

extern "C" fn stop(inside: *mut c_void) {
    // SAFETY: `StreamGate::new` made the box for exactly this call.
    let (go, reached) = *unsafe { Box::from_raw(inside.cast::<Inside>()) };
    let _ = reached.send(());
    let _ = go.recv();
}

impl StreamGate {
    /// Puts the gate into `stream`, closed.
    fn new(stream: CUstream) -> Self {
        let ((go, wait), (sender, reached)) = (channel(), channel());
        let inside: Box<Inside> = Box::new((wait, sender));
        // SAFETY: the function gets the box back and frees it.
        ok(unsafe { cuLaunchHostFunc(stream, Some(stop), Box::into_raw(inside).cast()) });
        Self { go, reached }
    }

    /// Waits until the stream stands at the gate.
    fn wait_until_reached(&self) {
        self.reached.recv().unwrap();
    }

    fn open(self) {
        self.go.send(()).unwrap();
    }
}

/// Numbers that host functions leave, in the order they ran.
type Trace = Arc<std::sync::Mutex<Vec<u32>>>;

extern "C" fn leave(number: *mut c_void) {
    // SAFETY: `trace` made the box for exactly this call.
    let (trace, number) = *unsafe { Box::from_raw(number.cast::<(Trace, u32)>()) };
    trace.lock().unwrap().push(number);
}

/// Makes `stream` append `number` to `trace` when it gets there.
fn trace(stream: CUstream, trace: &Trace, number: u32) {
    let inside = Box::new((Arc::clone(trace), number));
    // SAFETY: the function gets the box back and frees it.
    ok(unsafe { cuLaunchHostFunc(stream, Some(leave), Box::into_raw(inside).cast()) });
}

//! Host functions: functions of the program that streams call.

#![expect(unsafe_code, reason = "calls functions of the program")]

use std::ffi::c_void;

use katydid_cuda_sys::{CUhostFn, CUresult, CUstream, CUstreamCallback};

use crate::ffi::api;
use crate::graphs::capture;
use crate::sync::job::StreamJob;
use crate::sync::streams::resolve;

/// The program's argument of a host function, which another thread passes on.
struct Data(*mut c_void);

// SAFETY: never looked at here; the program passes it knowing that a thread of the driver will hand it back.
unsafe impl Send for Data {}

impl Data {
    /// Takes the whole value, so that closures capture it and not the pointer inside.
    fn get(self) -> *mut c_void {
        self.0
    }
}

api! {
    /// Submits a host function. Once the context has failed, it is not called any more.
    fn cuLaunchHostFunc(stream: CUstream, function: CUhostFn, data: *mut c_void) {
        let function = function.ok_or(CUresult::ERROR_INVALID_VALUE)?;
        let stream = resolve(stream)?;
        if capture::host(&stream, function as usize, data.expose_provenance())? {
            return Ok(());
        }
        let data = Data(data);
        let job = StreamJob::new(move |context| {
            context.output.flush();
            // SAFETY: the program registered this function for this data.
            unsafe { function(data.get()) };
            Ok(())
        });
        stream.submit(job)?;
    }

    /// Submits a callback. It is always called, with the state of the context.
    fn cuStreamAddCallback(stream: CUstream, callback: CUstreamCallback, data: *mut c_void, flags: u32) {
        let callback = callback.ok_or(CUresult::ERROR_INVALID_VALUE)?;
        if flags != 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let data = Data(data);
        let job = StreamJob::always(move |context| {
            context.output.flush();
            // SAFETY: the program registered this function for this data.
            unsafe { callback(stream, context.healthy().into(), data.get()) };
            Ok(())
        });
        resolve(stream)?.submit(job)?;
    }
}

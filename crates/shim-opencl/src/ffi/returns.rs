//! The wrapper of every exported symbol: catches panics, converts errors to codes, checks for forks.
//!
//! Nothing unwinds into the program. A call after a fork or without a worker is answered without access to the session. Calls
//! during process exit are served as usual: programs release their objects then.
#![expect(unsafe_code, reason = "writes codes where C callers want them")]

use std::ptr;

use katydid_client::ffi::{Refusals, catch_panics, write_optional};
use katydid_client::life::{self, Life};
use katydid_client::session::api_code::ApiCode;
use katydid_opencl_sys::{
    Code, Function, cl_command_queue, cl_context, cl_event, cl_kernel, cl_mem, cl_program, cl_sampler, void,
};

/// The null value that a function returns in place of an object.
pub(crate) trait Null {
    const NULL: Self;
}

/// The result of a function that returns an object and a code: the object alone, or both if an existing object has failed.
pub(crate) trait ObjectReturn {
    type Handle: Null;

    fn into_parts(self) -> (Self::Handle, Code);
}

macro_rules! nulls {
    ($($handle:ty: $null:expr),* $(,)?) => {$(
        impl Null for $handle {
            const NULL: Self = $null;
        }

        impl ObjectReturn for $handle {
            type Handle = Self;

            fn into_parts(self) -> (Self, Code) {
                (self, Code::SUCCESS)
            }
        }
    )*};
}

nulls! {
    cl_context: Self(ptr::null_mut()),
    cl_command_queue: Self(ptr::null_mut()),
    cl_mem: Self(ptr::null_mut()),
    cl_program: Self(ptr::null_mut()),
    cl_kernel: Self(ptr::null_mut()),
    cl_event: Self(ptr::null_mut()),
    cl_sampler: Self(ptr::null_mut()),
    *mut void: ptr::null_mut(),
}

impl<H: Null> ObjectReturn for (H, Code) {
    type Handle = H;

    fn into_parts(self) -> Self {
        self
    }
}

fn run<R>(function: Function, body: impl FnOnce() -> Result<R, Code>) -> Result<R, Code> {
    if matches!(life::now(), Life::Forked | Life::Lost) {
        return Err(Code::WORKER_LOST);
    }
    catch_panics(|| function.name(), body).unwrap_or(Err(Code::OUT_OF_HOST_MEMORY))
}

/// Runs a function that returns a code.
///
/// # Safety
///
/// The requirements of `body`.
pub(crate) unsafe fn entry(function: Function, body: impl FnOnce() -> Result<(), Code>) -> i32 {
    match run(function, body) {
        Ok(()) => Code::SUCCESS.0,
        Err(code) => code.0,
    }
}

/// Runs a function that returns an object, and stores its code at `out`.
///
/// # Safety
///
/// `out` is null or writable, and the requirements of `body` hold.
pub(crate) unsafe fn object<R: ObjectReturn>(
    function: Function,
    out: *mut i32,
    body: impl FnOnce() -> Result<R, Code>,
) -> R::Handle {
    let (object, code) = match run(function, body) {
        Ok(returned) => returned.into_parts(),
        Err(code) => (R::Handle::NULL, code),
    };
    // SAFETY: by the contract.
    unsafe { write_optional(out, code.0) };
    object
}

/// Runs a function that returns an object or null.
///
/// # Safety
///
/// The requirements of `body`.
pub(crate) unsafe fn lookup<H: Null>(function: Function, body: impl FnOnce() -> Result<H, Code>) -> H {
    run(function, body).unwrap_or(H::NULL)
}

/// Runs a function that returns nothing.
///
/// # Safety
///
/// The requirements of `body`.
pub(crate) unsafe fn silent(function: Function, body: impl FnOnce() -> Result<(), Code>) {
    let _ = run(function, body);
}

/// Reports once that a function was refused.
#[cold]
fn refuse(function: Function) -> Code {
    static REFUSALS: Refusals<{ Function::ALL.len() }> = Refusals::new();
    REFUSALS.report(function as usize, function.name(), "is not supported");
    Code::INVALID_OPERATION
}

/// Returns the code of functions that are always refused.
pub(crate) fn refused_entry(function: Function) -> i32 {
    refuse(function).0
}

/// Returns the null value of functions that return an object and are always refused.
pub(crate) fn refused_lookup<H: Null>(function: Function) -> H {
    refuse(function);
    H::NULL
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_go_where_the_caller_wants_them() {
        let mut code = 1;
        // SAFETY: null, and a local.
        unsafe {
            let buffer =
                object(Function::clCreateBuffer, &raw mut code, || Err::<cl_mem, _>(Code::INVALID_BUFFER_SIZE));
            assert_eq!((buffer, code), (cl_mem::NULL, -61));
            let buffer =
                object(Function::clCreateBuffer, ptr::null_mut(), || Ok(cl_mem(ptr::without_provenance_mut(8))));
            assert_eq!(buffer.0.addr(), 8);
            let failed = (cl_program(ptr::without_provenance_mut(8)), Code::LINK_PROGRAM_FAILURE);
            let linked = object(Function::clLinkProgram, &raw mut code, || Ok(failed));
            assert_eq!((linked, code), (failed.0, -17));
            assert_eq!(entry(Function::clFlush, || panic!("on purpose")), Code::OUT_OF_HOST_MEMORY.0);
        }
        assert_eq!(refused_entry(Function::clEnqueueNativeKernel), Code::INVALID_OPERATION.0);
    }
}

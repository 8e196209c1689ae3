//! A driver's object as a session has it: a handle of a kind, and the driver's functions.

use katydid_opencl_sys::{
    Code, Dispatch, cl_command_queue, cl_context, cl_device_id, cl_event, cl_kernel, cl_mem, cl_platform_id,
    cl_program, cl_sampler, void,
};
use katydid_wire::opencl::kind;

/// A handle type: its kind, and the code for an id that names no such object.
pub(crate) trait Handle: Copy {
    const KIND: u32;
    const WRONG: Code;

    fn new(pointer: *mut void) -> Self;

    fn pointer(self) -> *mut void;
}

macro_rules! handles {
    ($($handle:ident $kind:ident $wrong:ident)*) => {$(
        impl Handle for $handle {
            const KIND: u32 = kind::$kind;
            const WRONG: Code = Code::$wrong;

            fn new(pointer: *mut void) -> Self {
                Self(pointer)
            }

            fn pointer(self) -> *mut void {
                self.0
            }
        }
    )*};
}

handles! {
    cl_platform_id PLATFORM INVALID_PLATFORM
    cl_device_id DEVICE INVALID_DEVICE
    cl_context CONTEXT INVALID_CONTEXT
    cl_command_queue QUEUE INVALID_COMMAND_QUEUE
    cl_mem MEMORY INVALID_MEM_OBJECT
    cl_sampler SAMPLER INVALID_SAMPLER
    cl_program PROGRAM INVALID_PROGRAM
    cl_kernel KERNEL INVALID_KERNEL
    cl_event EVENT INVALID_EVENT
}

/// An object of a driver, with the driver's functions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Object<H> {
    pub(crate) handle: H,
    pub(crate) api: &'static Dispatch,
    /// Bytes of a buffer; bytes of an element of an image.
    pub(crate) size: u64,
}

// SAFETY: OpenCL objects may be used from every thread; the pointer is never followed here.
#[expect(unsafe_code, reason = "OpenCL objects are shared between threads")]
unsafe impl<H> Send for Object<H> {}

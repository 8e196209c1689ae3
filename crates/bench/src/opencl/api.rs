//! An OpenCL device with a queue and a program, through whatever loader the measuring program finds.

#![expect(unsafe_code, reason = "calls into the OpenCL library")]

use std::ffi::{CStr, c_char, c_void};
use std::ptr;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::opencl_calls::{call, functions, make};
use katydid_cli_core::layout::OPENCL_LOADER;

/// A pointer to an object of the library.
pub(super) type Handle = *mut c_void;

/// `CL_DEVICE_TYPE_ALL` of `clGetDeviceIDs`.
const DEVICE_TYPE_ALL: u64 = 0xffff_ffff;
/// `CL_DEVICE_NAME` of `clGetDeviceInfo`.
const DEVICE_NAME: u32 = 0x102b;
/// `CL_TRUE`: the call returns when the copy is done.
const BLOCKING_CALL: u32 = 1;
/// `CL_MEM_READ_WRITE`, without and with `CL_MEM_ALLOC_HOST_PTR`.
pub(super) const MEM_READ_WRITE: u64 = 1;
pub(super) const MEM_FOR_HOST: u64 = 1 | 16;
/// `CL_EVENT_COMMAND_EXECUTION_STATUS` of `clGetEventInfo`.
const EVENT_STATUS: u32 = 0x11d3;
/// `CL_MAP_READ` of `clEnqueueMapBuffer`.
const MAP_READ: u64 = 1;

const KERNEL_SOURCE: &CStr = cr"
__kernel void nothing(int value) { }
__kernel void compute(__global float *v) {
    size_t i = get_global_id(0);
    float a = v[i], b = 1.0f;
    for (int k = 0; k < 64; k++) { a = mad(a, 0.999f, b); b = mad(b, 0.998f, a); }
    v[i] = a * 1e-6f + b * 1e-6f;
}
__kernel void move(__global const float4 *from, __global float4 *to) { size_t i = get_global_id(0); to[i] = from[i]; }
";

type Events = *const Handle;

functions! {
    clGetPlatformIDs(u32, *mut Handle, *mut u32) -> i32;
    clGetDeviceIDs(Handle, u64, u32, *mut Handle, *mut u32) -> i32;
    clGetDeviceInfo(Handle, u32, usize, *mut c_char, *mut usize) -> i32;
    clCreateContext(*const isize, u32, *const Handle, Handle, Handle, *mut i32) -> Handle;
    clCreateCommandQueue(Handle, Handle, u64, *mut i32) -> Handle;
    clCreateProgramWithSource(Handle, u32, *const *const c_char, *const usize, *mut i32) -> Handle;
    clBuildProgram(Handle, u32, *const Handle, *const c_char, Handle, Handle) -> i32;
    clCreateKernel(Handle, *const c_char, *mut i32) -> Handle;
    clSetKernelArg(Handle, u32, usize, *const c_void) -> i32;
    clCreateBuffer(Handle, u64, usize, Handle, *mut i32) -> Handle;
    clReleaseMemObject(Handle) -> i32;
    clEnqueueWriteBuffer(Handle, Handle, u32, usize, usize, *const c_void, u32, Events, *mut Handle) -> i32;
    clEnqueueReadBuffer(Handle, Handle, u32, usize, usize, *mut c_void, u32, Events, *mut Handle) -> i32;
    clEnqueueMapBuffer(Handle, Handle, u32, u64, usize, usize, u32, Events, *mut Handle, *mut i32) -> Handle;
    clEnqueueUnmapMemObject(Handle, Handle, Handle, u32, Events, *mut Handle) -> i32;
    clEnqueueNDRangeKernel(Handle, Handle, u32, *const usize, *const usize, *const usize, u32, Events, *mut Handle) -> i32;
    clCreateUserEvent(Handle, *mut i32) -> Handle;
    clGetEventInfo(Handle, u32, usize, *mut c_void, *mut usize) -> i32;
    clFinish(Handle) -> i32;
}

/// The first device of the first platform.
pub(super) struct Device {
    functions: Functions,
    pub(super) name: String,
    context: Handle,
    queue: Handle,
    program: Handle,
    /// Library that holds the functions.
    _library: Library,
}

impl Device {
    /// Opens the device and builds the program.
    pub(super) fn open() -> Result<Self, String> {
        // SAFETY: loading the library runs no code but its constructors.
        let library =
            unsafe { Library::open(Some(OPENCL_LOADER), RTLD_NOW | RTLD_LOCAL) }.map_err(|error| error.to_string())?;
        let functions = Functions::load(&library)?;
        let (mut platform, mut device, none) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        call!(functions, clGetPlatformIDs(1, &raw mut platform, ptr::null_mut()))?;
        call!(functions, clGetDeviceIDs(platform, DEVICE_TYPE_ALL, 1, &raw mut device, ptr::null_mut()))?;
        let mut name = [0; 256];
        call!(functions, clGetDeviceInfo(device, DEVICE_NAME, name.len() - 1, name.as_mut_ptr(), ptr::null_mut()))?;
        // SAFETY: the last byte was not given away, so there is a NUL.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
        let context = make!(functions, clCreateContext(ptr::null(), 1, &raw const device, none, none))?;
        let queue = make!(functions, clCreateCommandQueue(context, device, 0))?;
        let (text, size) = (KERNEL_SOURCE.as_ptr(), KERNEL_SOURCE.count_bytes());
        let program = make!(functions, clCreateProgramWithSource(context, 1, &raw const text, &raw const size))?;
        call!(functions, clBuildProgram(program, 1, &raw const device, c"".as_ptr(), none, none))?;
        Ok(Self { functions, name, context, queue, program, _library: library })
    }

    /// Creates a kernel of the program.
    pub(super) fn kernel(&self, name: &CStr) -> Result<Handle, String> {
        make!(self.functions, clCreateKernel(self.program, name.as_ptr()))
    }

    /// Creates a buffer of `bytes` bytes.
    pub(super) fn buffer(&self, flags: u64, bytes: usize) -> Result<Handle, String> {
        make!(self.functions, clCreateBuffer(self.context, flags, bytes, ptr::null_mut()))
    }

    /// Releases a buffer.
    pub(super) fn release(&self, buffer: Handle) -> Result<(), String> {
        call!(self.functions, clReleaseMemObject(buffer))
    }

    /// Sets an argument of a kernel.
    pub(super) fn set<T>(&self, kernel: Handle, index: u32, value: &T) -> Result<(), String> {
        call!(self.functions, clSetKernelArg(kernel, index, size_of::<T>(), ptr::from_ref(value).cast()))
    }

    /// Enqueues a kernel over `items` work-items.
    pub(super) fn launch(&self, kernel: Handle, items: usize) -> Result<(), String> {
        let (none, no_event) = (ptr::null(), ptr::null_mut());
        let (queue, size) = (self.queue, &raw const items);
        call!(self.functions, clEnqueueNDRangeKernel(queue, kernel, 1, none, size, none, 0, ptr::null(), no_event))
    }

    /// Creates an event that stays unset.
    pub(super) fn event(&self) -> Result<Handle, String> {
        make!(self.functions, clCreateUserEvent(self.context))
    }

    /// Returns the state of an event.
    pub(super) fn state(&self, event: Handle) -> Result<i32, String> {
        let mut state = 0_i32;
        let pointer = (&raw mut state).cast();
        call!(self.functions, clGetEventInfo(event, EVENT_STATUS, size_of::<i32>(), pointer, ptr::null_mut()))
            .map(|()| state)
    }

    /// Waits until the queue is empty (`clFinish`).
    pub(super) fn finish(&self) -> Result<(), String> {
        call!(self.functions, clFinish(self.queue))
    }

    /// Writes a buffer, blocking.
    pub(super) fn write(&self, buffer: Handle, bytes: &[u8]) -> Result<(), String> {
        let (queue, from, no_event) = (self.queue, bytes.as_ptr().cast(), ptr::null_mut());
        call!(
            self.functions,
            clEnqueueWriteBuffer(queue, buffer, BLOCKING_CALL, 0, bytes.len(), from, 0, ptr::null(), no_event)
        )
    }

    /// Reads a buffer, blocking.
    pub(super) fn read(&self, buffer: Handle, bytes: &mut [u8]) -> Result<(), String> {
        let (queue, to, no_event) = (self.queue, bytes.as_mut_ptr().cast(), ptr::null_mut());
        call!(
            self.functions,
            clEnqueueReadBuffer(queue, buffer, BLOCKING_CALL, 0, bytes.len(), to, 0, ptr::null(), no_event)
        )
    }

    /// Maps a buffer for reading, and unmaps it.
    pub(super) fn map(&self, buffer: Handle, bytes: usize) -> Result<(), String> {
        let (queue, none, no_event) = (self.queue, ptr::null(), ptr::null_mut());
        let pointer = make!(
            self.functions,
            clEnqueueMapBuffer(queue, buffer, BLOCKING_CALL, MAP_READ, 0, bytes, 0, none, no_event)
        )?;
        call!(self.functions, clEnqueueUnmapMemObject(queue, buffer, pointer, 0, none, no_event))?;
        self.finish()
    }
}

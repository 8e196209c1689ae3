//! The work of the CUDA kernels through OpenCL, on the CPU device of whatever platform is installed (PoCL, as a rule).

#![expect(unsafe_code, reason = "calls into the OpenCL library")]

use std::ffi::{CStr, c_char, c_void};
use std::ptr;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use super::device::Device;
use super::work::{Argument, KernelWork};
use crate::opencl_calls::{call, functions, make};

type Handle = *mut c_void;

const KERNEL_SOURCE: &str = include_str!("kernels.cl");
const OPENCL_LIBRARY: &str = "libOpenCL.so.1";
/// `CL_DEVICE_TYPE_CPU` of `clGetDeviceIDs`.
const DEVICE_TYPE_CPU: u64 = 2;
/// `CL_PLATFORM_NAME` of `clGetPlatformInfo`.
const PLATFORM_NAME: u32 = 0x0902;
/// `CL_MEM_READ_WRITE` of `clCreateBuffer`.
const MEM_READ_WRITE: u64 = 1;
/// `CL_TRUE`: the call returns when the copy is done.
const BLOCKING_CALL: u32 = 1;

functions! {
    clGetPlatformIDs(u32, *mut Handle, *mut u32) -> i32;
    clGetPlatformInfo(Handle, u32, usize, *mut c_char, *mut usize) -> i32;
    clGetDeviceIDs(Handle, u64, u32, *mut Handle, *mut u32) -> i32;
    clCreateContext(*const isize, u32, *const Handle, Handle, Handle, *mut i32) -> Handle;
    clCreateCommandQueue(Handle, Handle, u64, *mut i32) -> Handle;
    clCreateProgramWithSource(Handle, u32, *const *const c_char, *const usize, *mut i32) -> Handle;
    clBuildProgram(Handle, u32, *const Handle, *const c_char, Handle, Handle) -> i32;
    clCreateKernel(Handle, *const c_char, *mut i32) -> Handle;
    clSetKernelArg(Handle, u32, usize, *const c_void) -> i32;
    clCreateBuffer(Handle, u64, usize, Handle, *mut i32) -> Handle;
    clReleaseMemObject(Handle) -> i32;
    clEnqueueWriteBuffer(Handle, Handle, u32, usize, usize, *const c_void, u32, *const Handle, *mut Handle) -> i32;
    clEnqueueReadBuffer(Handle, Handle, u32, usize, usize, *mut c_void, u32, *const Handle, *mut Handle) -> i32;
    clEnqueueNDRangeKernel(Handle, Handle, u32, *const usize, *const usize, *const usize, u32, *const Handle, *mut Handle) -> i32;
    clFinish(Handle) -> i32;
}

/// An OpenCL device with a queue and the kernels built.
pub(super) struct OpenCl {
    functions: Functions,
    name: String,
    context: Handle,
    queue: Handle,
    program: Handle,
    kernel: Handle,
    buffers: Vec<Handle>,
    /// Library that holds the functions.
    _library: Library,
}

impl OpenCl {
    /// Opens the first platform that has a CPU device.
    pub(super) fn open() -> Result<Self, String> {
        // SAFETY: loading the library runs no code but its constructors.
        let library =
            unsafe { Library::open(Some(OPENCL_LIBRARY), RTLD_NOW | RTLD_LOCAL) }.map_err(|error| error.to_string())?;
        let functions = Functions::load(&library)?;
        let (mut platforms, mut count) = ([ptr::null_mut(); 8], 0_u32);
        call!(functions, clGetPlatformIDs(platforms.len() as u32, platforms.as_mut_ptr(), &raw mut count))?;
        let found = platforms.iter().take(count as usize).find_map(|platform| {
            let mut device = ptr::null_mut();
            call!(functions, clGetDeviceIDs(*platform, DEVICE_TYPE_CPU, 1, &raw mut device, ptr::null_mut())).ok()?;
            Some((*platform, device))
        });
        let (platform, device) = found.ok_or("no OpenCL platform here has a CPU device")?;
        let mut name = [0; 128];
        call!(
            functions,
            clGetPlatformInfo(platform, PLATFORM_NAME, name.len() - 1, name.as_mut_ptr(), ptr::null_mut())
        )?;
        // SAFETY: the last byte was not given away, so there is a NUL.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
        let none = ptr::null_mut();
        let context = make!(functions, clCreateContext(ptr::null(), 1, &raw const device, none, none))?;
        let queue = make!(functions, clCreateCommandQueue(context, device, 0))?;
        let (text, size) = (KERNEL_SOURCE.as_ptr().cast::<c_char>(), KERNEL_SOURCE.len());
        let program = make!(functions, clCreateProgramWithSource(context, 1, &raw const text, &raw const size))?;
        call!(functions, clBuildProgram(program, 1, &raw const device, c"".as_ptr(), none, none))?;
        Ok(Self { functions, name, context, queue, program, kernel: none, buffers: Vec::new(), _library: library })
    }
}

impl Device for OpenCl {
    fn prepare(&mut self, work: &KernelWork) -> Result<(), String> {
        for buffer in std::mem::take(&mut self.buffers) {
            call!(self.functions, clReleaseMemObject(buffer))?;
        }
        self.kernel = make!(self.functions, clCreateKernel(self.program, work.name.as_ptr()))?;
        for index in 0..work.buffers.len() {
            let content = work.content(index);
            let (size, none) = (size_of_val(content.as_slice()), ptr::null_mut());
            let buffer = make!(self.functions, clCreateBuffer(self.context, MEM_READ_WRITE, size, none))?;
            let from = content.as_ptr().cast();
            call!(
                self.functions,
                clEnqueueWriteBuffer(self.queue, buffer, BLOCKING_CALL, 0, size, from, 0, ptr::null(), none.cast())
            )?;
            self.buffers.push(buffer);
        }
        for (index, argument) in (0..).zip(work.arguments) {
            match argument {
                Argument::Buffer(buffer) => {
                    let buffer = self.buffers.get(*buffer).copied().unwrap_or(ptr::null_mut());
                    call!(
                        self.functions,
                        clSetKernelArg(self.kernel, index, size_of::<Handle>(), (&raw const buffer).cast())
                    )?;
                }
                Argument::Int(number) => {
                    call!(
                        self.functions,
                        clSetKernelArg(self.kernel, index, size_of::<i32>(), ptr::from_ref(number).cast())
                    )?;
                }
            }
        }
        Ok(())
    }

    fn run(&mut self, work: &KernelWork) -> Result<(), String> {
        let local = work.block.map(|size| size as usize);
        let global = [work.grid[0] as usize * local[0], work.grid[1] as usize * local[1]];
        let (queue, kernel, none) = (self.queue, self.kernel, ptr::null());
        let (global, local) = (global.as_ptr(), local.as_ptr());
        call!(
            self.functions,
            clEnqueueNDRangeKernel(queue, kernel, 2, none, global, local, 0, none.cast(), ptr::null_mut())
        )?;
        call!(self.functions, clFinish(self.queue))
    }

    fn result(&mut self, work: &KernelWork) -> Result<Vec<u32>, String> {
        let mut words = vec![0_u32; work.buffers.get(work.result).copied().unwrap_or(0)];
        let from = self.buffers.get(work.result).copied().unwrap_or(ptr::null_mut());
        let (size, to) = (size_of_val(words.as_slice()), words.as_mut_ptr().cast());
        call!(
            self.functions,
            clEnqueueReadBuffer(self.queue, from, BLOCKING_CALL, 0, size, to, 0, ptr::null(), ptr::null_mut())
        )?;
        Ok(words)
    }

    fn executed(&self) -> Option<u64> {
        None
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}

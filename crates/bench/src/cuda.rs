//! The few driver functions that the measuring program calls, from whatever `libcuda.so.1` the loader finds.
//!
//! The ordinary search finds them, because programs find their driver, or Katydid in its place, in the same way. A method adds
//! one indirect call and a comparison to the measured call.

#![expect(unsafe_code, reason = "calls into the driver library under measurement")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::io;
use std::ptr;

use katydid_cuda_sys::{CUDA_MEMCPY2D, CUDA_MEMCPY3D, CUresult};
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

use katydid_cli_core::layout::CUDA_LIBRARY;

/// A function that failed, or is missing.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
pub(super) enum CudaError {
    /// No library, or no such function in it.
    #[error("{0}")]
    Missing(String),
    /// It returned an error.
    #[error("{function}: {}", .code.name().map_or(format!("error {}", .code.0), |name| name.to_string_lossy().into_owned()))]
    Returned { function: &'static str, code: CUresult },
}

impl CudaError {
    /// Returns the error of a measuring thread that has panicked.
    pub(super) fn died() -> Self {
        Self::Missing("a measuring thread has died".to_owned())
    }

    /// Returns the error of a measurement that had no time to begin.
    pub(super) fn no_time() -> Self {
        Self::Missing("there was no time left for it".to_owned())
    }
}

/// A figure that needs more than a driver may fail for another reason.
impl From<io::Error> for CudaError {
    fn from(error: io::Error) -> Self {
        Self::Missing(error.to_string())
    }
}

/// A handle of the driver; meaningful only to the library it came from.
type Handle = *mut c_void;

macro_rules! functions {
    ($($name:ident($($argument:ty),*);)*) => {
        #[expect(non_snake_case, reason = "names are the vendor's")]
        struct Functions { $($name: unsafe extern "C" fn($($argument),*) -> u32,)* }

        impl Functions {
            fn load(library: &Library) -> Result<Self, CudaError> {
                Ok(Self { $(
                    // SAFETY: every CUDA driver library exports these symbols with these signatures (cuda.h).
                    $name: *unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) }
                        .map_err(|error| CudaError::Missing(error.to_string()))?,
                )* })
            }
        }
    };
}

functions! {
    cuInit(c_uint);
    cuDeviceGet(*mut c_int, c_int);
    cuDevicePrimaryCtxRetain(*mut Handle, c_int);
    cuDevicePrimaryCtxRelease_v2(c_int);
    cuCtxSetCurrent(Handle);
    cuCtxSynchronize();
    cuStreamCreate(*mut Handle, c_uint);
    cuStreamDestroy_v2(Handle);
    cuStreamQuery(Handle);
    cuStreamSynchronize(Handle);
    cuEventCreate(*mut Handle, c_uint);
    cuEventDestroy_v2(Handle);
    cuEventQuery(Handle);
    cuEventRecord(Handle, Handle);
    cuEventSynchronize(Handle);
    cuStreamBeginCapture_v2(Handle, c_uint);
    cuStreamEndCapture(Handle, *mut Handle);
    cuGraphInstantiateWithFlags(*mut Handle, Handle, u64);
    cuGraphLaunch(Handle, Handle);
    cuGraphExecDestroy(Handle);
    cuGraphDestroy(Handle);
    cuModuleLoadData(*mut Handle, *const c_void);
    cuModuleUnload(Handle);
    cuModuleGetFunction(*mut Handle, Handle, *const c_char);
    cuLaunchKernel(Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void, *mut *mut c_void);
    cuMemAlloc_v2(*mut u64, usize);
    cuMemFree_v2(u64);
    cuMemGetInfo_v2(*mut usize, *mut usize);
    cuMemsetD32_v2(u64, c_uint, usize);
    cuMemsetD8Async(u64, u8, usize, Handle);
    cuMemAllocHost_v2(*mut *mut c_void, usize);
    cuMemFreeHost(*mut c_void);
    cuMemcpyHtoD_v2(u64, *const c_void, usize);
    cuMemcpyDtoH_v2(*mut c_void, u64, usize);
    cuMemcpyHtoDAsync_v2(u64, *const c_void, usize, Handle);
    cuMemcpyDtoHAsync_v2(*mut c_void, u64, usize, Handle);
    cuMemcpy2D_v2(*const CUDA_MEMCPY2D);
    cuMemcpy3D_v2(*const CUDA_MEMCPY3D);
}

/// A loaded module; meaningful only to the [`Cuda`] it came from.
pub(super) struct Module(Handle);

/// A kernel of a module; meaningful only to the [`Cuda`] it came from.
pub(super) struct Kernel(Handle);

/// An initialised driver with a current context.
pub(super) struct Cuda {
    functions: Functions,
    device: c_int,
    context: Handle,
    stream: Handle,
    event: Handle,
    kernel: Handle,
    /// Library that holds the functions.
    _library: Library,
}

// SAFETY: a CUDA driver may be called from any thread, with any handle; what it is called with here is never changed
// once `prepare` and `load` are done, which take the value by exclusive reference.
unsafe impl Sync for Cuda {}

/// Calls a function of the table and turns its code into a result.
macro_rules! call {
    ($cuda:expr, $name:ident($($argument:expr),*)) => {{
        // SAFETY: handles came from this very library and are not destroyed before `Cuda` is; pointers are to memory
        // that the enclosing method owns or borrows for the call, of the size that it passes.
        let code = CUresult(unsafe { ($cuda.$name)($($argument),*) });
        code.ok().map_err(|code| CudaError::Returned { function: stringify!($name), code })
    }};
}

pub(super) mod objects;
pub(super) mod rows;

impl Cuda {
    /// Makes the context current in this thread too.
    pub(super) fn enter(&self) -> Result<(), CudaError> {
        call!(self.functions, cuCtxSetCurrent(self.context))
    }

    /// Opens the driver and a context: what a program waits for before its first real call.
    pub(super) fn open() -> Result<Self, CudaError> {
        // SAFETY: loading a driver library runs its constructors, as in every program that links it.
        let library = unsafe { Library::open(Some(CUDA_LIBRARY), RTLD_NOW | RTLD_GLOBAL) }
            .map_err(|error| CudaError::Missing(error.to_string()))?;
        let functions = Functions::load(&library)?;
        let (mut device, mut context) = (0, ptr::null_mut());
        call!(functions, cuInit(0))?;
        call!(functions, cuDeviceGet(&raw mut device, 0))?;
        call!(functions, cuDevicePrimaryCtxRetain(&raw mut context, device))?;
        call!(functions, cuCtxSetCurrent(context))?;
        let none = ptr::null_mut();
        Ok(Self { functions, device, context, stream: none, event: none, kernel: none, _library: library })
    }

    /// Makes the stream and the event. The stream waits for the default one, as in most programs. Otherwise, copies of the
    /// default stream would need an explicit wait.
    pub(super) fn prepare(&mut self) -> Result<(), CudaError> {
        call!(self.functions, cuStreamCreate(&raw mut self.stream, 0))?;
        call!(self.functions, cuEventCreate(&raw mut self.event, 0))
    }

    /// Loads the kernel `name` of `ptx` for later launches.
    pub(super) fn load(&mut self, ptx: &CStr, name: &CStr) -> Result<(), CudaError> {
        let mut module = ptr::null_mut();
        call!(self.functions, cuModuleLoadData(&raw mut module, ptx.as_ptr().cast()))?;
        call!(self.functions, cuModuleGetFunction(&raw mut self.kernel, module, name.as_ptr()))
    }

    /// Loads a module, which stays loaded.
    pub(super) fn module(&self, ptx: &CStr) -> Result<Module, CudaError> {
        let mut module = ptr::null_mut();
        call!(self.functions, cuModuleLoadData(&raw mut module, ptx.as_ptr().cast()))?;
        Ok(Module(module))
    }

    /// Returns a kernel of a module.
    pub(super) fn kernel(&self, module: &Module, name: &CStr) -> Result<Kernel, CudaError> {
        let mut kernel = ptr::null_mut();
        call!(self.functions, cuModuleGetFunction(&raw mut kernel, module.0, name.as_ptr()))?;
        Ok(Kernel(kernel))
    }

    /// Launches a kernel that takes `arguments`, each an address or a smaller number.
    pub(super) fn start(
        &self,
        kernel: &Kernel,
        [grid, block]: [[u32; 2]; 2],
        arguments: &[u64],
    ) -> Result<(), CudaError> {
        let none = ptr::null_mut();
        let mut pointers: Vec<*mut c_void> =
            arguments.iter().map(|argument| ptr::from_ref(argument).cast_mut().cast()).collect();
        let ([gx, gy], [bx, by]) = (grid, block);
        call!(
            self.functions,
            cuLaunchKernel(kernel.0, gx, gy, 1, bx, by, 1, 0, none, pointers.as_mut_ptr(), none.cast())
        )
    }

    /// Queries the idle stream. Even a driver that batches must answer.
    pub(super) fn query_stream(&self) -> Result<(), CudaError> {
        call!(self.functions, cuStreamQuery(self.stream))
    }

    /// Waits for everything launched so far.
    pub(super) fn synchronize(&self) -> Result<(), CudaError> {
        call!(self.functions, cuCtxSynchronize())
    }

    /// Launches one thread of the kernel.
    pub(super) fn launch(&self) -> Result<(), CudaError> {
        let (none, stream) = (ptr::null_mut(), self.stream);
        call!(self.functions, cuLaunchKernel(self.kernel, 1, 1, 1, 1, 1, 1, 0, stream, none, none))
    }

    /// Records the one event again.
    pub(super) fn record(&self) -> Result<(), CudaError> {
        call!(self.functions, cuEventRecord(self.event, self.stream))
    }

    /// Allocates device memory, whose contents do not matter.
    pub(super) fn allocate(&self, bytes: usize) -> Result<u64, CudaError> {
        let mut address = 0;
        call!(self.functions, cuMemAlloc_v2(&raw mut address, bytes))?;
        Ok(address)
    }

    /// Writes one word of 32 bits to device memory.
    pub(super) fn fill(&self, at: u64, word: u32) -> Result<(), CudaError> {
        call!(self.functions, cuMemsetD32_v2(at, word, 1))
    }

    /// Returns the free bytes of the device.
    pub(super) fn free_memory(&self) -> Result<usize, CudaError> {
        let (mut free, mut total) = (0, 0);
        call!(self.functions, cuMemGetInfo_v2(&raw mut free, &raw mut total))?;
        Ok(free)
    }

    /// Frees memory that [`Cuda::allocate`] returned.
    pub(super) fn free(&self, address: u64) -> Result<(), CudaError> {
        call!(self.functions, cuMemFree_v2(address))
    }

    /// Returns when `from` may be changed again.
    pub(super) fn copy_in(&self, to: u64, from: &[u8]) -> Result<(), CudaError> {
        call!(self.functions, cuMemcpyHtoD_v2(to, from.as_ptr().cast(), from.len()))
    }

    /// Returns when `to` holds the bytes.
    pub(super) fn copy_out(&self, to: &mut [u8], from: u64) -> Result<(), CudaError> {
        call!(self.functions, cuMemcpyDtoH_v2(to.as_mut_ptr().cast(), from, to.len()))
    }

    /// Copies bytes that must live until the next synchronisation. Only the four of a constant are ever passed.
    pub(super) fn copy_in_async(&self, to: u64, from: &'static [u8]) -> Result<(), CudaError> {
        call!(self.functions, cuMemcpyHtoDAsync_v2(to, from.as_ptr().cast(), from.len(), self.stream))
    }

    /// Allocates zeroed pinned memory, freed with the value.
    pub(super) fn pinned(&self, bytes: usize) -> Result<PinnedMemory<'_>, CudaError> {
        let mut start = ptr::null_mut();
        call!(self.functions, cuMemAllocHost_v2(&raw mut start, bytes))?;
        // SAFETY: the driver has just returned `bytes` writable bytes there, which no other code knows of.
        unsafe { start.cast::<u8>().write_bytes(0, bytes) };
        Ok(PinnedMemory { cuda: self, start: start.cast(), bytes })
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        // The process ends next. If this fails, the driver holds nothing of the bench any more.
        let _ = call!(self.functions, cuDevicePrimaryCtxRelease_v2(self.device));
    }
}

/// Host memory that the driver allocated.
pub(super) struct PinnedMemory<'a> {
    cuda: &'a Cuda,
    start: *mut u8,
    bytes: usize,
}

impl PinnedMemory<'_> {
    /// Lends the pinned memory as bytes.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: `bytes` initialised bytes at `start` that only this value knows of, until it is dropped; all copies
        // that use them are synchronous.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.bytes) }
    }
}

impl Drop for PinnedMemory<'_> {
    fn drop(&mut self) {
        let _ = call!(self.cuda.functions, cuMemFreeHost(self.start.cast()));
    }
}

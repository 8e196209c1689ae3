//! The device under test through the driver API, from the installed library.

#![expect(unsafe_code, reason = "calls into the software device")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::Path;
use std::ptr;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use super::device::Device;
use super::work::{Argument, KernelWork};

type Handle = *mut c_void;

/// The kernels as nvcc compiled `kernels.cu`, with a NUL at the end.
pub(crate) const KERNELS_PTX: &str = concat!(include_str!("kernels.ptx"), "\0");

macro_rules! functions {
    ($($name:ident($($argument:ty),*);)*) => {
        #[expect(non_snake_case, reason = "names are the vendor's")]
        struct Functions { $($name: unsafe extern "C" fn($($argument),*) -> u32,)* }

        impl Functions {
            fn load(library: &Library) -> Result<Self, String> {
                Ok(Self { $(
                    // SAFETY: softcuda exports these symbols with these signatures (cuda.h).
                    $name: *unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) }
                        .map_err(|error| error.to_string())?,
                )* })
            }
        }
    };
}

functions! {
    cuInit(c_uint);
    cuDevicePrimaryCtxRetain(*mut Handle, c_int);
    cuCtxSetCurrent(Handle);
    cuCtxSynchronize();
    cuModuleLoadData(*mut Handle, *const c_void);
    cuModuleGetFunction(*mut Handle, Handle, *const c_char);
    cuLaunchKernel(Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void, *mut *mut c_void);
    cuMemAlloc_v2(*mut u64, usize);
    cuMemFree_v2(u64);
    cuMemcpyHtoD_v2(u64, *const c_void, usize);
    cuMemcpyDtoH_v2(*mut c_void, u64, usize);
}

/// softcuda with a current context and the kernels loaded.
pub(super) struct Soft {
    functions: Functions,
    executed: unsafe extern "C" fn() -> u64,
    module: Handle,
    kernel: Handle,
    buffers: Vec<u64>,
    /// Library that holds the functions.
    _library: Library,
}

macro_rules! call {
    ($functions:expr, $name:ident($($argument:expr),*)) => {{
        // SAFETY: handles and addresses came from this very library; pointers are to memory that the enclosing method
        // owns or borrows for the call, of the size that it passes.
        match unsafe { ($functions.$name)($($argument),*) } {
            0 => Ok(()),
            code => Err(format!("{}: error {code}", stringify!($name))),
        }
    }};
}

impl Soft {
    /// Opens the library at `path`.
    pub(super) fn open(path: &Path) -> Result<Self, String> {
        // SAFETY: loading it runs no code but its constructors.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.map_err(|error| error.to_string())?;
        let functions = Functions::load(&library)?;
        // SAFETY: softcuda exports this symbol with this signature.
        let executed = *unsafe { library.get(b"katydid_softcuda_executed\0") }.map_err(|error| error.to_string())?;
        let (mut context, mut module) = (ptr::null_mut(), ptr::null_mut());
        call!(functions, cuInit(0))?;
        call!(functions, cuDevicePrimaryCtxRetain(&raw mut context, 0))?;
        call!(functions, cuCtxSetCurrent(context))?;
        call!(functions, cuModuleLoadData(&raw mut module, KERNELS_PTX.as_ptr().cast()))?;
        Ok(Self { functions, executed, module, kernel: ptr::null_mut(), buffers: Vec::new(), _library: library })
    }
}

impl Device for Soft {
    fn prepare(&mut self, work: &KernelWork) -> Result<(), String> {
        let name: &CStr = work.name;
        call!(self.functions, cuModuleGetFunction(&raw mut self.kernel, self.module, name.as_ptr()))?;
        for buffer in std::mem::take(&mut self.buffers) {
            call!(self.functions, cuMemFree_v2(buffer))?;
        }
        for index in 0..work.buffers.len() {
            let (content, mut address) = (work.content(index), 0);
            let size = size_of_val(content.as_slice());
            call!(self.functions, cuMemAlloc_v2(&raw mut address, size))?;
            call!(self.functions, cuMemcpyHtoD_v2(address, content.as_ptr().cast(), size))?;
            self.buffers.push(address);
        }
        Ok(())
    }

    fn run(&mut self, work: &KernelWork) -> Result<(), String> {
        let mut values: Vec<u64> = work
            .arguments
            .iter()
            .map(|argument| match argument {
                Argument::Buffer(index) => self.buffers.get(*index).copied().unwrap_or(0),
                Argument::Int(number) => u64::from(number.cast_unsigned()),
            })
            .collect();
        let mut params: Vec<*mut c_void> = values.iter_mut().map(|value| ptr::from_mut(value).cast()).collect();
        let ([gx, gy], [bx, by], none) = (work.grid, work.block, ptr::null_mut());
        call!(
            self.functions,
            cuLaunchKernel(self.kernel, gx, gy, 1, bx, by, 1, 0, none, params.as_mut_ptr(), ptr::null_mut())
        )?;
        call!(self.functions, cuCtxSynchronize())
    }

    fn result(&mut self, work: &KernelWork) -> Result<Vec<u32>, String> {
        let mut words = vec![0_u32; work.buffers.get(work.result).copied().unwrap_or(0)];
        let from = self.buffers.get(work.result).copied().unwrap_or(0);
        let size = size_of_val(words.as_slice());
        call!(self.functions, cuMemcpyDtoH_v2(words.as_mut_ptr().cast(), from, size))?;
        Ok(words)
    }

    fn executed(&self) -> Option<u64> {
        // SAFETY: has no preconditions.
        Some(unsafe { (self.executed)() })
    }

    fn name(&self) -> String {
        "softcuda".to_owned()
    }
}

//! Kernels of libraries: the same in every context, and launchable as they are.
#![expect(unsafe_code, reason = "writes pointers of C callers")]

use std::ffi::{CStr, CString, c_char};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use katydid_client::slab::Slot;
use katydid_cuda_sys::{CUdevice, CUfunction, CUkernel, CUlibrary, CUresult};
use katydid_wire::message::{kdFunctionFacts, kdFunctionSetAttribute, kdFunctionSetCacheConfig, kdKernelFunction};

use crate::code::function::Function;
use crate::code::properties::Code;
use crate::context::contexts::Context;
use crate::context::device::{device, handle};
use crate::context::stack;
use crate::ffi::guard::{enqueue, out};
use crate::ffi::handle::object;
use crate::process::session::shim;

/// A kernel of a library.
pub(crate) struct Kernel {
    pub(crate) slot: Slot,
    /// The library's handle.
    pub(crate) library: usize,
    name: CString,
    /// Known from the first moment on at which there is a context to ask in.
    code: OnceLock<Code>,
    /// The same for each device, once something was set for one of them.
    tuned: OnceLock<Box<[Code]>>,
    /// What it is in each context, by the context's handle.
    functions: Mutex<Vec<(usize, Arc<Function>)>>,
}

impl Kernel {
    /// A kernel that its library gave, with its code if that could be told.
    pub(crate) fn new(slot: Slot, library: usize, name: CString, code: Option<Code>) -> Self {
        let code = code.map_or_else(OnceLock::new, OnceLock::from);
        Self { slot, library, name, code, tuned: OnceLock::new(), functions: Mutex::default() }
    }

    /// What is known of it.
    ///
    /// # Errors
    ///
    /// `ERROR_INVALID_CONTEXT` when it was found without a context and there is none now, either.
    pub(crate) fn code(&self) -> Result<&Code, CUresult> {
        if let Some(code) = self.code.get() {
            return Ok(code);
        }
        let session = &shim()?.session;
        let facts = session.call(stack::wire()?, &kdFunctionFacts { function: 0, kernel: self.wire() })?.facts;
        let code = Code::decode(&facts).ok_or_else(|| session.broken("kdFunctionFacts"))?;
        Ok(self.code.get_or_init(|| code))
    }

    /// What is known of it on a device: attributes that were set for another one do not count there.
    ///
    /// # Errors
    ///
    /// As [`Kernel::code`].
    pub(crate) fn code_on(&self, device: u32) -> Result<&Code, CUresult> {
        match self.tuned.get().and_then(|codes| codes.get(device as usize)) {
            Some(code) => Ok(code),
            None => self.code(),
        }
    }

    /// The same, to be changed.
    fn tuned_on(&self, device: u32) -> Result<&Code, CUresult> {
        let (code, devices) = (self.code()?, &shim()?.devices);
        let codes = self.tuned.get_or_init(|| devices.iter().map(|_| code.copy()).collect());
        codes.get(device as usize).ok_or(CUresult::ERROR_INVALID_DEVICE)
    }

    /// The number that messages carry.
    pub(crate) fn wire(&self) -> u32 {
        self.slot.index + 1
    }

    /// The program's handle.
    pub(crate) fn handle(&self) -> CUkernel {
        CUkernel(handle(self.slot.handle))
    }

    /// As the image calls it.
    pub(crate) fn name(&self) -> &CStr {
        &self.name
    }

    /// Forgets what it was in a context that ended.
    pub(crate) fn forget(&self, context: &Context) {
        let mut functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        functions.retain(|(other, _)| *other != context.slot.handle);
    }

    /// A changed attribute holds for the kernel's functions on the device too.
    fn keep_on(&self, device: u32, id: u32, value: i32) {
        let functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        let there = functions.iter().filter(|(_, function)| function.context.device == device);
        there.for_each(|(_, function)| function.code.keep(id, value));
    }
}

/// What a kernel is in a context: the same function every time.
pub(crate) fn function_in(kernel: &Arc<Kernel>, context: &Arc<Context>) -> Result<Arc<Function>, CUresult> {
    let mut functions = kernel.functions.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, function)) = functions.iter().find(|(other, _)| *other == context.slot.handle) {
        return Ok(Arc::clone(function));
    }
    let shim = shim()?;
    let function = shim.functions.try_insert(CUresult::ERROR_OUT_OF_MEMORY, |slot| {
        let message = kdKernelFunction { function: slot.index + 1, kernel: kernel.wire() };
        let facts = shim.session.call(context.wire(), &message)?.facts;
        let code = Code::decode(&facts).ok_or_else(|| shim.session.broken("kdKernelFunction"))?;
        Ok(Function::of_kernel(slot, Arc::clone(context), Arc::clone(kernel), code))
    })?;
    functions.push((context.slot.handle, Arc::clone(&function)));
    Ok(function)
}

/// # Safety
///
/// `target` is null or writable; so are the outputs of every function below.
pub(crate) unsafe fn function(target: *mut CUfunction, kernel: CUkernel) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    let kernel = object(kernel)?;
    target.write(function_in(&kernel, &stack::active()?.owner())?.handle());
    Ok(())
}

/// # Safety
///
/// As [`function`].
pub(crate) unsafe fn library(target: *mut CUlibrary, kernel: CUkernel) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    target.write(CUlibrary(handle(object(kernel)?.library)));
    Ok(())
}

/// # Safety
///
/// As [`function`].
pub(crate) unsafe fn attribute(target: *mut i32, id: u32, kernel: CUkernel, ordinal: CUdevice) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    let kernel = object(kernel)?;
    device(ordinal)?;
    target.write(kernel.code_on(ordinal.unsigned_abs())?.attribute(id)?);
    Ok(())
}

/// Checked here, so that an impossible value is refused at the call.
pub(crate) fn set_attribute(id: u32, value: i32, kernel: CUkernel, ordinal: CUdevice) -> Result<(), CUresult> {
    let kernel = object(kernel)?;
    let position = device(ordinal)?.position as i32;
    kernel.tuned_on(ordinal.unsigned_abs())?.set_attribute(id, value, ordinal.unsigned_abs())?;
    kernel.keep_on(ordinal.unsigned_abs(), id, value);
    enqueue(&kdFunctionSetAttribute { function: 0, kernel: kernel.wire(), device: position, attribute: id, value })
}

/// A preference between cache and shared memory, 0 to 3.
pub(crate) fn set_cache_config(kernel: CUkernel, config: u32, ordinal: CUdevice) -> Result<(), CUresult> {
    let kernel = object(kernel)?;
    let position = device(ordinal)?.position as i32;
    if config > 3 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    enqueue(&kdFunctionSetCacheConfig { function: 0, kernel: kernel.wire(), device: position, config })
}

/// The name lives as long as the library.
///
/// # Safety
///
/// As [`function`].
pub(crate) unsafe fn name(target: *mut *const c_char, kernel: CUkernel) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    target.write(object(kernel)?.name.as_ptr());
    Ok(())
}

/// Needs a current context, as the driver does.
///
/// # Safety
///
/// As [`function`]; `size` may be null.
pub(crate) unsafe fn param_info(
    kernel: CUkernel,
    index: usize,
    offset: *mut usize,
    size: *mut usize,
) -> Result<(), CUresult> {
    stack::active()?;
    // SAFETY: handed on.
    unsafe { object(kernel)?.code()?.write_param(index, offset, size) }
}

//! Lookups in libraries and modules, which return the same handle every time.

use std::ffi::CString;
use std::sync::{Arc, PoisonError};

use katydid_cuda_sys::{CUfunction, CUkernel, CUresult};
use katydid_wire::message::{kdKernelFunction, kdLibraryKernel, kdLibraryModule, kdModuleFunction};

use crate::code::properties::Code;
use crate::code::records::{FUNCTIONS, Function, KERNELS, Kernel, LIBRARIES, Library, MODULES, Module};
use crate::context::record::Context;
use crate::context::request::any_context;
use crate::context::stack;
use crate::ffi::handle::object;
use crate::memory::device_backing::{UNKNOWN_IDLE_BYTES, in_need};
use crate::process::session::shim;

/// Returns the current context's device, or the first one.
pub(super) fn any_device() -> u32 {
    stack::active().map_or(0, |context| context.device)
}

/// Returns the kernel of a name: the same handle every time.
pub(crate) fn kernel_named(library: &Library, name: &[u8]) -> Result<Arc<Kernel>, CUresult> {
    let mut kernels = library.kernels.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(kernel) = kernels.get(name) {
        return Ok(Arc::clone(kernel));
    }
    let session = &shim()?.session;
    let find = || {
        KERNELS.get()?.try_insert(CUresult::ERROR_OUT_OF_MEMORY, |slot| {
            let message = kdLibraryKernel { kernel: slot.index + 1, library: library.wire(), name };
            let context = any_context();
            let facts = session.call(context, &message)?.facts;
            // Without a context the driver finds the kernel, but does not describe it.
            let code = if context == 0 { None } else { Code::decode(&facts) };
            let name = CString::new(name).map_err(|_| CUresult::ERROR_NOT_FOUND)?;
            Ok(Kernel::new(slot, library.slot.handle, name, code))
        })
    };
    let kernel = in_need(any_device(), UNKNOWN_IDLE_BYTES, find)?;
    kernels.insert(name.to_vec(), Arc::clone(&kernel));
    Ok(kernel)
}

/// Returns the library of a kernel.
fn library_of(kernel: &Kernel) -> Result<Arc<Library>, CUresult> {
    LIBRARIES.get()?.get(kernel.library).ok_or(CUresult::ERROR_INVALID_HANDLE)
}

/// Returns the library's module in a context: the same module every time.
pub(crate) fn module_in(library: &Arc<Library>, context: &Arc<Context>) -> Result<Arc<Module>, CUresult> {
    let mut modules = library.modules.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, module)) = modules.iter().find(|(other, _)| *other == context.slot.handle) {
        return Ok(Arc::clone(module));
    }
    let session = &shim()?.session;
    let module = MODULES.get()?.try_insert(CUresult::ERROR_OUT_OF_MEMORY, |slot| {
        let message = kdLibraryModule { module: slot.index + 1, library: library.wire() };
        session.call(context.wire(), &message)?;
        Ok(Module::new(slot, Arc::clone(context), Some(Arc::clone(library))))
    })?;
    modules.push((context.slot.handle, Arc::clone(&module)));
    Ok(module)
}

/// Returns the kernel's function in a context: the same function every time.
pub(crate) fn function_in(kernel: &Arc<Kernel>, context: &Arc<Context>) -> Result<Arc<Function>, CUresult> {
    let mut functions = kernel.functions.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, function)) = functions.iter().find(|(other, _)| *other == context.slot.handle) {
        return Ok(Arc::clone(function));
    }
    let session = &shim()?.session;
    let function = FUNCTIONS.get()?.try_insert(CUresult::ERROR_OUT_OF_MEMORY, |slot| {
        let message = kdKernelFunction { function: slot.index + 1, kernel: kernel.wire() };
        let facts = session.call(context.wire(), &message)?.facts;
        let code = Code::decode(&facts).ok_or_else(|| session.broken("kdKernelFunction"))?;
        Ok(Function::of_kernel(slot, Arc::clone(context), Arc::clone(kernel), code))
    })?;
    functions.push((context.slot.handle, Arc::clone(&function)));
    Ok(function)
}

/// Returns the function of a name: the same handle every time.
pub(super) fn function_named(module: &Arc<Module>, name: &[u8]) -> Result<Arc<Function>, CUresult> {
    if let Some(library) = &module.library {
        return function_in(&kernel_named(library, name)?, &module.context);
    }
    let mut functions = module.functions.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(function) = functions.get(name) {
        return Ok(Arc::clone(function));
    }
    let session = &shim()?.session;
    let find = || {
        FUNCTIONS.get()?.try_insert(CUresult::ERROR_OUT_OF_MEMORY, |slot| {
            let message = kdModuleFunction { function: slot.index + 1, module: module.wire(), name };
            let facts = session.call(module.context.wire(), &message)?.facts;
            let code = Code::decode(&facts).ok_or_else(|| session.broken("kdModuleFunction"))?;
            let name = CString::new(name).map_err(|_| CUresult::ERROR_NOT_FOUND)?;
            Ok(Function::of_module(slot, Arc::clone(&module.context), name, module.slot.handle, code))
        })
    };
    let function = in_need(module.context.device, UNKNOWN_IDLE_BYTES, find)?;
    functions.insert(name.to_vec(), Arc::clone(&function));
    Ok(function)
}

/// Returns the kernel behind a function's handle: programs may pass a kernel in place of a function.
pub(crate) fn kernel_of_function(function: CUfunction) -> Result<Arc<Kernel>, CUresult> {
    object(CUkernel(function.0))
}

/// Returns the handle of a function's module.
pub(super) fn module_of(function: &Function) -> Result<usize, CUresult> {
    if let Some(module) = function.module.get() {
        return Ok(*module);
    }
    let kernel = function.kernel.as_ref().ok_or(CUresult::ERROR_INVALID_HANDLE)?;
    let module = module_in(&library_of(kernel)?, &function.context)?.slot.handle;
    Ok(*function.module.get_or_init(|| module))
}

//! Libraries: images loaded without a context, whose kernels work in any.
#![expect(unsafe_code, reason = "reads images and writes pointers of C callers")]

use std::collections::HashMap;
use std::ffi::{CString, c_char, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use katydid_client::slab::Slot;
use katydid_cuda_sys::{CUdeviceptr, CUfunction, CUkernel, CUlibrary, CUmodule, CUresult};
use katydid_wire::facts::{decode_names, encode_options};
use katydid_wire::message::{
    cuLibraryUnload, kdLibraryGlobal, kdLibraryKernel, kdLibraryKernelNames, kdLibraryLoad, kdLibraryModule,
};

use crate::code::image;
use crate::code::jit::Options;
use crate::code::kernel::Kernel;
use crate::code::module::Module;
use crate::code::properties::Code;
use crate::code::variable::{self, Variable};
use crate::context::contexts::{self, Context};
use crate::context::device::handle;
use crate::context::stack;
use crate::ffi::guard::{out, text, write_if_given};
use crate::ffi::handle::object;
use crate::memory::allocation::{UNKNOWN, in_need};
use crate::process::session::shim;

/// A library.
pub(crate) struct Library {
    pub(crate) slot: Slot,
    /// Those asked for so far, by name.
    kernels: Mutex<HashMap<Vec<u8>, Arc<Kernel>>>,
    /// What it is in each context, by the context's handle.
    modules: Mutex<Vec<(usize, Arc<Module>)>>,
}

impl Library {
    /// The number that messages carry.
    pub(crate) fn wire(&self) -> u32 {
        self.slot.index + 1
    }

    /// Forgets what it was in a context that ended.
    pub(crate) fn forget(&self, context: &Context) {
        self.modules.lock().unwrap_or_else(PoisonError::into_inner).retain(|(other, _)| *other != context.slot.handle);
        for kernel in self.kernels.lock().unwrap_or_else(PoisonError::into_inner).values() {
            kernel.forget(context);
        }
    }
}

/// The current context's wire id, or 0: most of what libraries do needs no context.
fn any_context() -> u32 {
    stack::wire().unwrap_or(0)
}

/// The current context's device, or the first one.
fn any_device() -> u32 {
    stack::active().map_or(0, |context| context.device)
}

/// The driver's own library options are about the image's memory, which the worker copies: they change nothing.
///
/// # Safety
///
/// `target` is null or writable, `code` null or an image; the arrays of the compiler's options are as
/// [`Options::read`] wants them.
#[expect(clippy::too_many_arguments, reason = "the driver's signature")]
pub(crate) unsafe fn load_data(
    target: *mut CUlibrary,
    code: *const c_void,
    ids: *mut u32,
    values: *mut *mut c_void,
    count: u32,
    _library_ids: *mut u32,
    _library_values: *mut *mut c_void,
    _library_count: u32,
) -> Result<(), CUresult> {
    // SAFETY: by the contract.
    let (target, options) = unsafe { (out(target)?, Options::read(count, ids, values)?) };
    let shim = shim()?;
    let (context, options) = (any_context(), encode_options(&options.numbers));
    let library = in_need(any_device(), UNKNOWN, || {
        // SAFETY: by the contract.
        unsafe { image::send(context, code) }?;
        shim.libraries.try_insert(CUresult::ERROR_OUT_OF_MEMORY, |slot| {
            shim.session.call(context, &kdLibraryLoad { library: slot.index + 1, options: &options })?;
            Ok(Library { slot, kernels: Mutex::default(), modules: Mutex::default() })
        })
    })?;
    target.write(CUlibrary(handle(library.slot.handle)));
    Ok(())
}

/// # Safety
///
/// As [`load_data`], with a C string in the place of the image.
#[expect(clippy::too_many_arguments, reason = "the driver's signature")]
pub(crate) unsafe fn load_file(
    target: *mut CUlibrary,
    path: *const c_char,
    ids: *mut u32,
    values: *mut *mut c_void,
    count: u32,
    library_ids: *mut u32,
    library_values: *mut *mut c_void,
    library_count: u32,
) -> Result<(), CUresult> {
    // SAFETY: by the contract; the file's bytes outlive the call and end with a NUL.
    unsafe {
        let bytes = image::read_file(path)?;
        let code = bytes.as_ptr().cast();
        load_data(target, code, ids, values, count, library_ids, library_values, library_count)
    }
}

/// Ends the library and all that was found in it.
pub(crate) fn unload(handle: CUlibrary) -> Result<(), CUresult> {
    let shim = shim()?;
    let library = shim.libraries.remove(handle.0.addr()).ok_or(CUresult::ERROR_INVALID_HANDLE)?;
    let own = library.slot.handle;
    for kernel in library.kernels.lock().unwrap_or_else(PoisonError::into_inner).values() {
        shim.kernels.remove(kernel.slot.handle);
    }
    for function in shim.functions.live().iter().filter(|function| function.is_of_library(own)) {
        shim.functions.remove(function.slot.handle);
    }
    for module in shim.modules.live().iter().filter(|module| module.is_library(own)) {
        shim.modules.remove(module.slot.handle);
        variable::forget_all(shim, module.slot.handle)?;
    }
    variable::forget_all(shim, own)?;
    shim.session.enqueue(any_context(), &cuLibraryUnload { library: library.wire() })
}

/// The kernel of a name: the same handle every time.
pub(crate) fn kernel_named(library: &Library, name: &[u8]) -> Result<Arc<Kernel>, CUresult> {
    let mut kernels = library.kernels.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(kernel) = kernels.get(name) {
        return Ok(Arc::clone(kernel));
    }
    let shim = shim()?;
    let find = || {
        shim.kernels.try_insert(CUresult::ERROR_OUT_OF_MEMORY, |slot| {
            let message = kdLibraryKernel { kernel: slot.index + 1, library: library.wire(), name };
            let context = any_context();
            let facts = shim.session.call(context, &message)?.facts;
            // Without a context the driver finds the kernel, but does not describe it.
            let code = if context == 0 { None } else { Code::decode(&facts) };
            let name = CString::new(name).map_err(|_| CUresult::ERROR_NOT_FOUND)?;
            Ok(Kernel::new(slot, library.slot.handle, name, code))
        })
    };
    let kernel = in_need(any_device(), UNKNOWN, find)?;
    kernels.insert(name.to_vec(), Arc::clone(&kernel));
    Ok(kernel)
}

/// The library of a kernel.
pub(crate) fn of(kernel: &Kernel) -> Result<Arc<Library>, CUresult> {
    shim()?.libraries.get(kernel.library).ok_or(CUresult::ERROR_INVALID_HANDLE)
}

/// # Safety
///
/// `target` is null or writable, `name` null or a C string.
pub(crate) unsafe fn kernel(target: *mut CUkernel, library: CUlibrary, name: *const c_char) -> Result<(), CUresult> {
    // SAFETY: by the contract.
    let (target, name) = unsafe { (out(target)?, text(name)?) };
    target.write(kernel_named(&*object(library)?, name)?.handle());
    Ok(())
}

fn kernel_names(library: &Library) -> Result<Vec<String>, CUresult> {
    let session = &shim()?.session;
    let reply = session.call(any_context(), &kdLibraryKernelNames { library: library.wire() })?;
    decode_names(&reply.names).map_err(|_| session.broken("kdLibraryKernelNames"))
}

/// # Safety
///
/// `count` is null or writable.
pub(crate) unsafe fn kernel_count(count: *mut u32, library: CUlibrary) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let count = unsafe { out(count) }?;
    count.write(kernel_names(&*object(library)?)?.len() as u32);
    Ok(())
}

/// # Safety
///
/// `target` is null or has `room` entries.
pub(crate) unsafe fn enumerate_kernels(target: *mut CUkernel, room: u32, library: CUlibrary) -> Result<(), CUresult> {
    let library = object(library)?;
    if target.is_null() {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    for (index, name) in kernel_names(&library)?.iter().take(room as usize).enumerate() {
        let kernel = kernel_named(&library, name.as_bytes())?.handle();
        // SAFETY: below `room`, so inside the array by the contract.
        unsafe { target.add(index).write_unaligned(kernel) };
    }
    Ok(())
}

/// What a library is in a context: the same module every time.
pub(crate) fn module_in(library: &Arc<Library>, context: &Arc<Context>) -> Result<Arc<Module>, CUresult> {
    let mut modules = library.modules.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, module)) = modules.iter().find(|(other, _)| *other == context.slot.handle) {
        return Ok(Arc::clone(module));
    }
    let shim = shim()?;
    let module = shim.modules.try_insert(CUresult::ERROR_OUT_OF_MEMORY, |slot| {
        let message = kdLibraryModule { module: slot.index + 1, library: library.wire() };
        shim.session.call(context.wire(), &message)?;
        Ok(Module::new(slot, Arc::clone(context), Some(Arc::clone(library))))
    })?;
    modules.push((context.slot.handle, Arc::clone(&module)));
    Ok(module)
}

/// # Safety
///
/// `target` is null or writable.
pub(crate) unsafe fn module(target: *mut CUmodule, library: CUlibrary) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    target.write(module_in(&object(library)?, &stack::active()?.owner())?.handle());
    Ok(())
}

/// Finds a variable in the current context; `managed` asks for one in memory that both sides use.
///
/// # Safety
///
/// Both outputs are null or writable, `name` is null or a C string.
unsafe fn find(
    address: *mut CUdeviceptr,
    size: *mut usize,
    library: CUlibrary,
    name: *const c_char,
    managed: bool,
) -> Result<(), CUresult> {
    // SAFETY: by the contract.
    let name = unsafe { text(name) }?;
    if address.is_null() && size.is_null() {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let library = object(library)?;
    // The runtime asks for managed variables before it has a context, as soon as the program touches one.
    let context = stack::active().or_else(|code| if managed { contexts::first() } else { Err(code) })?.owner();
    let message = kdLibraryGlobal { library: library.wire(), managed: u32::from(managed), name };
    let reply = shim()?.session.call(context.wire(), &message)?;
    let found = Variable { address: reply.address, size: reply.size, is_managed: reply.isManaged != 0 };
    found.note(library.slot.handle, &context)?;
    // SAFETY: null or writable, by the contract.
    unsafe {
        write_if_given(address, reply.address);
        write_if_given(size, reply.size as usize);
    }
    Ok(())
}

/// # Safety
///
/// As [`find`].
pub(crate) unsafe fn global(
    address: *mut CUdeviceptr,
    size: *mut usize,
    library: CUlibrary,
    name: *const c_char,
) -> Result<(), CUresult> {
    // SAFETY: handed on.
    unsafe { find(address, size, library, name, false) }
}

/// # Safety
///
/// As [`find`].
pub(crate) unsafe fn managed(
    address: *mut CUdeviceptr,
    size: *mut usize,
    library: CUlibrary,
    name: *const c_char,
) -> Result<(), CUresult> {
    // SAFETY: handed on.
    unsafe { find(address, size, library, name, true) }
}

/// No image of ours has unified functions, so none is ever found; the code is the driver's for that.
pub(crate) fn unified_function(
    _target: *mut *mut c_void,
    library: CUlibrary,
    _name: *const c_char,
) -> Result<(), CUresult> {
    object(library)?;
    Err(CUresult::ERROR_INVALID_VALUE)
}

/// The kernel that a function's handle is, as programs may pass one where a function is meant.
pub(crate) fn kernel_behind(function: CUfunction) -> Result<Arc<Kernel>, CUresult> {
    object(CUkernel(function.0))
}

//! Libraries: images loaded without a context, whose kernels work in any.
#![expect(unsafe_code, reason = "reads images and writes pointers of C callers")]

use std::cell::RefCell;
use std::ffi::{c_char, c_void};
use std::sync::{Mutex, PoisonError};

use katydid_client::ffi::write_optional;
use katydid_cuda_sys::{CUdeviceptr, CUkernel, CUlibrary, CUmodule, CUresult};
use katydid_wire::facts::{decode_names, encode_options};
use katydid_wire::message::{cuLibraryUnload, kdLibraryGlobal, kdLibraryKernelNames, kdLibraryLoad};

use crate::code::jit::Options;
use crate::code::records::{FUNCTIONS, KERNELS, LIBRARIES, Library, MODULES};
use crate::code::variable::{self, Variable};
use crate::code::{lookup, module_image};
use crate::context::request::any_context;
use crate::context::{primary, stack};
use crate::ffi::arguments::{handle, out, text};
use crate::ffi::handle::object;
use crate::memory::device_backing::{UNKNOWN_IDLE_BYTES, in_need};
use crate::process::session::shim;

/// Loads a library from memory. The library options only concern the image's memory, which the worker copies: they change
/// nothing.
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
    let (session, libraries) = (&shim()?.session, LIBRARIES.get()?);
    let (context, (info, error), numbers) = (any_context(), options.log_sizes(), encode_options(&options.numbers));
    // What the compiler said last.
    let last_reply = RefCell::new(None);
    let loaded = in_need(lookup::any_device(), UNKNOWN_IDLE_BYTES, || {
        // SAFETY: by the contract.
        unsafe { module_image::send(context, code) }?;
        libraries.try_insert(CUresult::ERROR_OUT_OF_MEMORY, |slot| {
            let message =
                kdLibraryLoad { library: slot.index + 1, infoLogSize: info, errorLogSize: error, options: &numbers };
            let (status, reply) = session.call_any(context, &message)?;
            last_reply.replace(reply);
            status.ok()?;
            Ok(Library { slot, kernels: Mutex::default(), modules: Mutex::default() })
        })
    });
    if let Some(reply) = last_reply.take() {
        // SAFETY: by the contract; the arrays and buffers stay for the whole call.
        unsafe { options.write(&(&reply).into()) };
    }
    target.write(CUlibrary(handle(loaded?.slot.handle)));
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
        let bytes = module_image::read_file(path)?;
        let code = bytes.as_ptr().cast();
        load_data(target, code, ids, values, count, library_ids, library_values, library_count)
    }
}

/// Unloads the library with everything that was found in it.
pub(crate) fn unload(handle: CUlibrary) -> Result<(), CUresult> {
    let (functions, modules) = (FUNCTIONS.get()?, MODULES.get()?);
    let library = LIBRARIES.get()?.remove(handle.0.addr()).ok_or(CUresult::ERROR_INVALID_HANDLE)?;
    let own = library.slot.handle;
    for kernel in library.kernels.lock().unwrap_or_else(PoisonError::into_inner).values() {
        KERNELS.get()?.remove(kernel.slot.handle);
    }
    for function in functions.live().iter().filter(|function| function.is_of_library(own)) {
        functions.remove(function.slot.handle);
    }
    for module in modules.live().iter().filter(|module| module.is_library(own)) {
        modules.remove(module.slot.handle);
        variable::forget_all(module.slot.handle)?;
    }
    variable::forget_all(own)?;
    shim()?.session.enqueue(any_context(), &cuLibraryUnload { library: library.wire() })
}

/// # Safety
///
/// `target` is null or writable, `name` null or a C string.
pub(crate) unsafe fn kernel(target: *mut CUkernel, library: CUlibrary, name: *const c_char) -> Result<(), CUresult> {
    // SAFETY: by the contract.
    let (target, name) = unsafe { (out(target)?, text(name)?) };
    target.write(lookup::kernel_named(&*object(library)?, name)?.handle());
    Ok(())
}

fn kernel_names(library: &Library) -> Result<Vec<String>, CUresult> {
    let session = &shim()?.session;
    let reply = session.call(any_context(), &kdLibraryKernelNames { library: library.wire() })?;
    decode_names(&reply.names).map_err(|_| session.broken("kdLibraryKernelNames"))
}

/// # Safety
///
/// `target` is null or has `capacity` entries.
pub(crate) unsafe fn enumerate_kernels(
    target: *mut CUkernel,
    capacity: u32,
    library: CUlibrary,
) -> Result<(), CUresult> {
    let library = object(library)?;
    if target.is_null() {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    for (index, name) in kernel_names(&library)?.iter().take(capacity as usize).enumerate() {
        let kernel = lookup::kernel_named(&library, name.as_bytes())?.handle();
        // SAFETY: below `capacity`, so inside the array by the contract.
        unsafe { target.add(index).write_unaligned(kernel) };
    }
    Ok(())
}

/// # Safety
///
/// `target` is null or writable.
pub(crate) unsafe fn module(target: *mut CUmodule, library: CUlibrary) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    target.write(lookup::module_in(&object(library)?, &stack::active()?.owner())?.handle());
    Ok(())
}

/// Finds a variable in the current context; `managed` asks for one in managed memory.
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
    let context = stack::active().or_else(|code| if managed { primary::first() } else { Err(code) })?.owner();
    let message = kdLibraryGlobal { library: library.wire(), managed: u32::from(managed), name };
    let reply = shim()?.session.call(context.wire(), &message)?;
    let variable = Variable { address: reply.address, size: reply.size, is_managed: reply.isManaged != 0 };
    variable.note(library.slot.handle, &context)?;
    // SAFETY: null or writable, by the contract.
    unsafe {
        write_optional(address, reply.address);
        write_optional(size, reply.size as usize);
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

/// Finds no function: no image that the shim loads has unified functions. The code is the one that the driver answers.
pub(crate) fn unified_function(
    _target: *mut *mut c_void,
    library: CUlibrary,
    _name: *const c_char,
) -> Result<(), CUresult> {
    object(library)?;
    Err(CUresult::ERROR_INVALID_VALUE)
}

//! Modules: images loaded into a context, with their functions and variables.
#![expect(unsafe_code, reason = "reads images and writes pointers of C callers")]

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_void};
use std::sync::{Arc, PoisonError};

use katydid_client::environment::variable;
use katydid_client::ffi::write_optional;
use katydid_cuda_sys::{CUdeviceptr, CUfunction, CUmodule, CUresult};
use katydid_wire::facts::{JitOption, decode_names, encode_options};
use katydid_wire::message::{cuModuleUnload, kdModuleFunctionNames, kdModuleGlobal, kdModuleLoad};

use crate::code::jit::{Answers, Options};
use crate::code::records::{FUNCTIONS, MODULES, Module};
use crate::code::variable::{self, Variable};
use crate::code::{lookup, module_image};
use crate::context::stack;
use crate::ffi::arguments::{out, text};
use crate::ffi::handle::object;
use crate::graph::model;
use crate::memory::device_backing::{UNKNOWN_IDLE_BYTES, in_need};
use crate::process::session::shim;
use crate::texture::{reference, surface_reference};

/// Loads an image into the current context.
///
/// # Safety
///
/// `pointer` is null or points to an image.
pub(crate) unsafe fn load(pointer: *const c_void, options: &[JitOption]) -> Result<Arc<Module>, CUresult> {
    // SAFETY: handed on.
    unsafe { load_answered(pointer, options, (0, 0), |_| ()) }
}

/// As [`load`]; `answered` gets what the compiler said, whether it succeeded or not.
///
/// # Safety
///
/// As [`load`].
unsafe fn load_answered(
    pointer: *const c_void,
    options: &[JitOption],
    (info, error): (u32, u32),
    answered: impl FnOnce(&Answers<'_>),
) -> Result<Arc<Module>, CUresult> {
    let context = stack::active()?.owner();
    let (session, modules, options) = (&shim()?.session, MODULES.get()?, encode_options(options));
    // The compiler's last reply.
    let last_reply = RefCell::new(None);
    let loaded = in_need(context.device, UNKNOWN_IDLE_BYTES, || {
        // SAFETY: handed on.
        unsafe { module_image::send(context.wire(), pointer) }?;
        modules.try_insert(CUresult::ERROR_OUT_OF_MEMORY, |slot| {
            let message =
                kdModuleLoad { module: slot.index + 1, infoLogSize: info, errorLogSize: error, options: &options };
            let (status, reply) = session.call_any(context.wire(), &message)?;
            last_reply.replace(reply);
            status.ok()?;
            Ok(Module::new(slot, Arc::clone(&context), None))
        })
    });
    if let Some(reply) = last_reply.take() {
        answered(&(&reply).into());
    }
    loaded
}

/// # Safety
///
/// `target` is null or writable, `path` null or a C string.
pub(crate) unsafe fn load_file(target: *mut CUmodule, path: *const c_char) -> Result<(), CUresult> {
    // SAFETY: by the contract; the file's bytes outlive the call and end with a NUL.
    unsafe {
        let target = out(target)?;
        stack::active()?;
        let bytes = module_image::read_file(path)?;
        target.write(load(bytes.as_ptr().cast(), &[])?.handle());
    }
    Ok(())
}

/// # Safety
///
/// `target` is null or writable, `pointer` null or an image.
pub(crate) unsafe fn load_data(target: *mut CUmodule, pointer: *const c_void) -> Result<(), CUresult> {
    // SAFETY: by the contract.
    unsafe { out(target)?.write(load(pointer, &[])?.handle()) };
    Ok(())
}

/// # Safety
///
/// As [`load_data`]; the arrays are as [`Options::read`] wants them.
pub(crate) unsafe fn load_data_ex(
    target: *mut CUmodule,
    pointer: *const c_void,
    count: u32,
    ids: *mut u32,
    values: *mut *mut c_void,
) -> Result<(), CUresult> {
    // SAFETY: by the contract; the arrays and buffers stay for the whole call.
    unsafe {
        let target = out(target)?;
        let options = Options::read(count, ids, values)?;
        let answered = |answers: &Answers<'_>| options.write(answers);
        target.write(load_answered(pointer, &options.numbers, options.log_sizes(), answered)?.handle());
    }
    Ok(())
}

/// Unloads the module with everything that was found in it. A library's module ends only with the library.
pub(crate) fn unload(handle: CUmodule) -> Result<(), CUresult> {
    if object(handle)?.library.is_some() {
        return Err(CUresult::ERROR_NOT_PERMITTED);
    }
    model::forbid()?;
    let module = MODULES.get()?.remove(handle.0.addr()).ok_or(CUresult::ERROR_INVALID_HANDLE)?;
    let functions = FUNCTIONS.get()?;
    for function in module.functions.lock().unwrap_or_else(PoisonError::into_inner).values() {
        functions.remove(function.slot.handle);
    }
    reference::forget_module(module.slot.handle)?;
    surface_reference::forget_module(module.slot.handle)?;
    variable::forget_all(module.slot.handle)?;
    shim()?.session.enqueue(module.context.wire(), &cuModuleUnload { hmod: module.wire() })
}

/// Answers lazy unless the environment says otherwise. The worker's driver decides; the program gets the answer that it
/// expects.
///
/// # Safety
///
/// `mode` is null or writable.
pub(crate) unsafe fn loading_mode(mode: *mut u32) -> Result<(), CUresult> {
    const EAGER: u32 = 1;
    const LAZY: u32 = 2;
    let eager = variable("CUDA_MODULE_LOADING").is_some_and(|value| value == "EAGER");
    // SAFETY: null or writable, by the contract.
    unsafe { out(mode) }?.write(if eager { EAGER } else { LAZY });
    Ok(())
}

/// # Safety
///
/// `target` is null or writable, `name` null or a C string.
pub(crate) unsafe fn function(target: *mut CUfunction, module: CUmodule, name: *const c_char) -> Result<(), CUresult> {
    // SAFETY: by the contract.
    let (target, name) = unsafe { (out(target)?, text(name)?) };
    let module = object(module)?;
    stack::wire_or_of(&module.context)?;
    target.write(lookup::function_named(&module, name)?.handle());
    Ok(())
}

fn function_names(module: &Module) -> Result<Vec<String>, CUresult> {
    let session = &shim()?.session;
    let reply = session.call(module.context.wire(), &kdModuleFunctionNames { module: module.wire() })?;
    decode_names(&reply.names).map_err(|_| session.broken("kdModuleFunctionNames"))
}

/// Returns all functions of a module with their names, in the driver's order.
pub(crate) fn functions_of(module: CUmodule) -> Result<Vec<(usize, CString)>, CUresult> {
    let module = object(module)?;
    let function_of = |name: &String| {
        let function = lookup::function_named(&module, name.as_bytes())?;
        Ok((function.slot.handle, CString::new(name.as_str()).unwrap_or_default()))
    };
    function_names(&module)?.iter().map(function_of).collect()
}

/// # Safety
///
/// `target` is null or has `capacity` entries.
pub(crate) unsafe fn enumerate_functions(
    target: *mut CUfunction,
    capacity: u32,
    module: CUmodule,
) -> Result<(), CUresult> {
    let module = object(module)?;
    if target.is_null() {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    for (index, name) in function_names(&module)?.iter().take(capacity as usize).enumerate() {
        let function = lookup::function_named(&module, name.as_bytes())?.handle();
        // SAFETY: below `capacity`, so inside the array by the contract.
        unsafe { target.add(index).write_unaligned(function) };
    }
    Ok(())
}

/// Answers the form with 32-bit addresses: no variable has one in today's contexts, but the module must exist.
pub(crate) fn narrow_global(
    _address: *mut u32,
    _size: *mut u32,
    module: CUmodule,
    _name: *const c_char,
) -> Result<(), CUresult> {
    object(module)?;
    Err(CUresult::ERROR_INVALID_CONTEXT)
}

/// # Safety
///
/// Both outputs are null or writable, `name` is null or a C string.
pub(crate) unsafe fn global(
    address: *mut CUdeviceptr,
    size: *mut usize,
    module: CUmodule,
    name: *const c_char,
) -> Result<(), CUresult> {
    // SAFETY: by the contract.
    let name = unsafe { text(name) }?;
    if address.is_null() && size.is_null() {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let module = object(module)?;
    let message = kdModuleGlobal { module: module.wire(), name };
    let reply = shim()?.session.call(module.context.wire(), &message)?;
    let variable = Variable { address: reply.address, size: reply.size, is_managed: reply.isManaged != 0 };
    variable.note(module.slot.handle, &module.context)?;
    // SAFETY: null or writable, by the contract.
    unsafe {
        write_optional(address, reply.address);
        write_optional(size, reply.size as usize);
    }
    Ok(())
}

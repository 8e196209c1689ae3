//! Modules: loading, global variables, the names of their functions.

#![expect(unsafe_code, reason = "calls the driver")]

use std::ffi::{CStr, CString};

use katydid_cuda_sys::{CUdeviceptr, CUfunction, CUmodule, CUresult, pointer_attribute};
use katydid_driver::Driver;
use katydid_wire::facts::encode_names;
use katydid_wire::frame::FrameHead;
use katydid_wire::message::{
    kdModuleFunctionNames, kdModuleFunctionNamesReply, kdModuleGlobal, kdModuleGlobalReply, kdModuleLoad,
    kdModuleLoadReply,
};

use crate::calls::fault::Fault;
use crate::code::jit_options::JitAnswers;
use crate::device::ask::ask;
use crate::handlers::code::{module_image, options};
use crate::handlers::{CallResult, success};
use crate::journal::TakenUpload;
use crate::memory::holdings::CodeOrigin;
use crate::memory::host_memory::VariableOwner;
use crate::state::Session;

/// Most names of one module: no module has as many functions.
pub(crate) const MAX_MODULE_NAMES: u32 = 1 << 16;

/// Loads the uploaded image into the current context. Logs are returned whether that succeeds or not.
pub(crate) fn kdModuleLoad(
    session: &mut Session,
    head: &FrameHead,
    message: kdModuleLoad<'_>,
) -> CallResult<kdModuleLoadReply> {
    session.tables.modules.check_new(message.module)?;
    let image = module_image::finish(session, head)?;
    let mut options = options::decode("kdModuleLoad", message.options, message.infoLogSize, message.errorLogSize)?;
    session.hold_module(message.module, session.needs_of(&image))?;
    let mut module = CUmodule::NULL;
    let (count, ids, values) = (options.count(), options.ids(), options.values());
    // SAFETY: the image is whole and its lengths stay inside it; both arrays have `count` entries, the log buffers
    // the sizes given beside them, and all outlive the call.
    let status =
        unsafe { session.driver().cuModuleLoadDataEx(&raw mut module, image.as_ptr().cast(), count, ids, values) };
    if status == CUresult::SUCCESS {
        session.bind(message.module, module)?;
        let image = session.images.share(image);
        session.journal.attach(TakenUpload::Image(image));
    } else {
        session.forget_code(CodeOrigin::Module(message.module));
    }
    let JitAnswers { info: infoLog, error: errorLog, info_length, error_length, threads } = options.answers();
    let (infoLength, errorLength) = (info_length, error_length);
    Ok((status, kdModuleLoadReply { infoLength, errorLength, threads, infoLog, errorLog }))
}

/// Returns address and size of a variable.
pub(crate) fn kdModuleGlobal(
    session: &mut Session,
    head: &FrameHead,
    message: kdModuleGlobal<'_>,
) -> CallResult<kdModuleGlobalReply> {
    let module: CUmodule = session.handle(head, message.module)?;
    let name = name(message.name)?;
    let (mut address, mut size) = (0, 0_usize);
    let driver = session.driver();
    // SAFETY: the outputs are locals, the name ends with a NUL.
    unsafe { driver.cuModuleGetGlobal_v2(&raw mut address, &raw mut size, module, name.as_ptr()) }.ok()?;
    let owner =
        VariableOwner::Module { module: message.module, context: session.tables.modules.context(message.module)? };
    let isManaged = u32::from(note_variable(session, address, size as u64, owner));
    success(kdModuleGlobalReply { address, size: size as u64, isManaged })
}

/// Allows copies with a variable from now on. Returns whether it is managed, so that the program has its own pages of it.
pub(crate) fn note_variable(session: &mut Session, address: CUdeviceptr, size: u64, owner: VariableOwner) -> bool {
    session.address_check.add_variable(address, size);
    let is_managed = is_managed(session.driver(), address);
    if is_managed {
        session.shared.blocks.add_variable(address, size, owner);
    }
    is_managed
}

/// Returns whether the processor reaches this variable as the GPU does.
fn is_managed(driver: &Driver, address: CUdeviceptr) -> bool {
    let mut managed = 0_u32;
    let answer = (&raw mut managed).cast();
    // SAFETY: the output is a local as wide as the attribute.
    let status = unsafe { driver.cuPointerGetAttribute(answer, pointer_attribute::IS_MANAGED, address) };
    status == CUresult::SUCCESS && managed != 0
}

/// Returns the names of a module's functions, in the driver's order.
pub(crate) fn kdModuleFunctionNames(
    session: &mut Session,
    head: &FrameHead,
    message: kdModuleFunctionNames,
) -> CallResult<kdModuleFunctionNamesReply> {
    let module: CUmodule = session.handle(head, message.module)?;
    let driver = session.driver();
    // SAFETY: the output is a local.
    let count = ask::<u32>(|out| unsafe { driver.cuModuleGetFunctionCount(out, module) })?.min(MAX_MODULE_NAMES);
    let mut functions = vec![CUfunction::NULL; count as usize];
    // SAFETY: the array has `count` entries.
    unsafe { driver.cuModuleEnumerateFunctions(functions.as_mut_ptr(), count, module) }.ok()?;
    let names = functions.iter().map(|function| function_name(driver, *function)).collect::<Result<Vec<_>, _>>()?;
    success(kdModuleFunctionNamesReply { names: encode_names(&names) })
}

fn function_name(driver: &Driver, function: CUfunction) -> Result<String, CUresult> {
    let mut text = std::ptr::null();
    // SAFETY: the output is a local; the handle came from the driver.
    unsafe { driver.cuFuncGetName(&raw mut text, function) }.ok()?;
    owned(text)
}

/// Copies a name that the driver owns.
pub(crate) fn owned(text: *const std::ffi::c_char) -> Result<String, CUresult> {
    if text.is_null() {
        return Err(CUresult::ERROR_NOT_FOUND);
    }
    // SAFETY: a driver's name is NUL-terminated and stays as long as its object, which the main loop alone ends.
    Ok(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

/// Returns the program's name as a C string.
///
/// # Errors
///
/// `CUDA_ERROR_NOT_FOUND` for one with a NUL inside: no object has such a name.
pub(crate) fn name(bytes: &[u8]) -> Result<CString, Fault> {
    CString::new(bytes).map_err(|_| CUresult::ERROR_NOT_FOUND.into())
}

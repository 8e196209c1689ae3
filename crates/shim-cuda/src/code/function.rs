//! Functions of modules: their record holds all that can be asked about them, so that a launch looks nothing up.
#![expect(unsafe_code, reason = "writes pointers of C callers")]

use std::ffi::{CStr, CString, c_char};
use std::sync::{Arc, Mutex, OnceLock};

use katydid_client::slab::Slot;
use katydid_cuda_sys::{CUfunction, CUmodule, CUresult};
use katydid_driver_state::launch::OldLaunch;
use katydid_wire::message::{kdFunctionSetAttribute, kdFunctionSetCacheConfig};

use crate::code::kernel::Kernel;
use crate::code::library;
use crate::code::properties::Code;
use crate::context::contexts::Context;
use crate::context::device::handle;
use crate::ffi::guard::{enqueue, out};
use crate::ffi::handle::object;

/// A function of a module, in one context.
pub(crate) struct Function {
    pub(crate) slot: Slot,
    pub(crate) context: Arc<Context>,
    name: CString,
    /// The module's handle; of a kernel's function it is found when first asked for.
    module: OnceLock<usize>,
    /// The kernel that this is in its context.
    kernel: Option<Arc<Kernel>>,
    pub(crate) code: Code,
    /// What was set on it for launches of the old style.
    pub(crate) old: Mutex<OldLaunch>,
}

impl Function {
    /// A function that a module gave.
    pub(crate) fn of_module(slot: Slot, context: Arc<Context>, name: CString, module: usize, code: Code) -> Self {
        Self { slot, context, name, module: OnceLock::from(module), kernel: None, code, old: Mutex::default() }
    }

    /// What a kernel is in a context.
    pub(crate) fn of_kernel(slot: Slot, context: Arc<Context>, kernel: Arc<Kernel>, code: Code) -> Self {
        let name = kernel.name().to_owned();
        Self { slot, context, name, module: OnceLock::new(), kernel: Some(kernel), code, old: Mutex::default() }
    }

    /// Its name, as its module has it.
    pub(crate) fn name(&self) -> &CStr {
        &self.name
    }

    /// The number that messages carry.
    pub(crate) fn wire(&self) -> u32 {
        self.slot.index + 1
    }

    /// The program's handle.
    pub(crate) fn handle(&self) -> CUfunction {
        CUfunction(handle(self.slot.handle))
    }

    /// Whether it is what a kernel of this library is in its context.
    pub(crate) fn is_of_library(&self, library: usize) -> bool {
        self.kernel.as_ref().is_some_and(|kernel| kernel.library == library)
    }

    fn module_handle(&self) -> Result<usize, CUresult> {
        if let Some(module) = self.module.get() {
            return Ok(*module);
        }
        let kernel = self.kernel.as_ref().ok_or(CUresult::ERROR_INVALID_HANDLE)?;
        let module = library::module_in(&library::of(kernel)?, &self.context)?.slot.handle;
        Ok(*self.module.get_or_init(|| module))
    }
}

/// # Safety
///
/// `target` is null or writable; so are the outputs of every function below.
pub(crate) unsafe fn attribute(target: *mut i32, id: u32, function: CUfunction) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    target.write(object(function)?.code.attribute(id)?);
    Ok(())
}

/// Checked here, so that an impossible value is refused at the call.
pub(crate) fn set_attribute(function: CUfunction, id: u32, value: i32) -> Result<(), CUresult> {
    let function = object(function)?;
    function.code.set_attribute(id, value, function.context.device)?;
    enqueue(&kdFunctionSetAttribute { function: function.wire(), kernel: 0, device: 0, attribute: id, value })
}

/// A preference between cache and shared memory, 0 to 3.
pub(crate) fn set_cache_config(function: CUfunction, config: u32) -> Result<(), CUresult> {
    let function = object(function)?;
    if config > 3 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    enqueue(&kdFunctionSetCacheConfig { function: function.wire(), kernel: 0, device: 0, config })
}

/// Accepted without effect, as drivers for sm_50 and later do.
pub(crate) fn set_shared_mem_config(function: CUfunction, _config: u32) -> Result<(), CUresult> {
    object(function).map(drop)
}

/// # Safety
///
/// As [`attribute`].
pub(crate) unsafe fn module(target: *mut CUmodule, function: CUfunction) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    target.write(CUmodule(handle(object(function)?.module_handle()?)));
    Ok(())
}

/// The name lives as long as the function.
///
/// # Safety
///
/// As [`attribute`].
pub(crate) unsafe fn name(target: *mut *const c_char, function: CUfunction) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    target.write(object(function)?.name.as_ptr());
    Ok(())
}

/// # Safety
///
/// As [`attribute`]; `size` may be null.
pub(crate) unsafe fn param_info(
    function: CUfunction,
    index: usize,
    offset: *mut usize,
    size: *mut usize,
) -> Result<(), CUresult> {
    // SAFETY: handed on.
    unsafe { object(function)?.code.write_param(index, offset, size) }
}

/// Code is loaded by the time its facts are here.
///
/// # Safety
///
/// As [`attribute`].
pub(crate) unsafe fn is_loaded(state: *mut u32, function: CUfunction) -> Result<(), CUresult> {
    /// `CU_FUNCTION_LOADING_STATE_LOADED`.
    const LOADED: u32 = 1;
    // SAFETY: null or writable, by the contract.
    let state = unsafe { out(state) }?;
    object(function)?;
    state.write(LOADED);
    Ok(())
}

/// See [`is_loaded`].
pub(crate) fn load(function: CUfunction) -> Result<(), CUresult> {
    object(function).map(drop)
}

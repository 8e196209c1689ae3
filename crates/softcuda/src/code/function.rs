//! Functions of modules: their needs and their settings.

use std::ffi::CString;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use katydid_cuda_sys::{CUfunction, CUresult, function_attribute as id};
use katydid_driver_rules::code::{check_carveout, check_dynamic_shared};
use katydid_driver_rules::state::launch::OldLaunch;
use katydid_ptx_exec::Kernel;

use crate::code::function_settings::FunctionSettings;
use crate::code::occupancy::threads_by_registers;
use crate::ffi::Outcome;
use crate::process::attributes::{COMPUTE_CAPABILITY, MAX_BLOCK_SHARED_BYTES};
use crate::process::handles::{Registry, new_handle};
use crate::process::state;

/// Returns the value of a function attribute.
pub(crate) fn attribute(kernel: &Kernel, settings: &FunctionSettings, attribute: u32) -> Outcome<i32> {
    let unsigned = |value: u32| i32::try_from(value).unwrap_or(i32::MAX);
    Ok(match attribute {
        id::MAX_THREADS_PER_BLOCK => unsigned(kernel.max_threads.min(threads_by_registers(kernel))),
        id::SHARED_SIZE_BYTES => unsigned(kernel.static_shared),
        id::CONST_SIZE_BYTES => unsigned(kernel.const_bytes),
        id::LOCAL_SIZE_BYTES => unsigned(kernel.local_bytes),
        id::NUM_REGS => unsigned(kernel.registers),
        id::PTX_VERSION => unsigned(kernel.target),
        id::BINARY_VERSION => unsigned(COMPUTE_CAPABILITY.0 * 10 + COMPUTE_CAPABILITY.1),
        id::MAX_DYNAMIC_SHARED_SIZE_BYTES => unsigned(settings.most_dynamic.load(Ordering::Relaxed)),
        id::PREFERRED_SHARED_MEMORY_CARVEOUT => settings.carveout.load(Ordering::Relaxed),
        id::NON_PORTABLE_CLUSTER_SIZE_ALLOWED => settings.large_clusters.load(Ordering::Relaxed),
        id::CLUSTER_SCHEDULING_POLICY_PREFERENCE => settings.scheduling.load(Ordering::Relaxed),
        id::CACHE_MODE_CA => 0,
        id::CLUSTER_SIZE_MUST_BE_SET => i32::from(kernel.needs_cluster),
        id::REQUIRED_CLUSTER_WIDTH..=id::REQUIRED_CLUSTER_DEPTH => {
            settings.cluster.axis(kernel, (attribute - id::REQUIRED_CLUSTER_WIDTH) as usize)
        }
        _ => return Err(CUresult::ERROR_INVALID_VALUE),
    })
}

/// Changes a function attribute. Attributes that are facts of the code cannot be set.
pub(crate) fn set_attribute(kernel: &Kernel, settings: &FunctionSettings, attribute: u32, value: i32) -> Outcome {
    let within = |most: i32| if (0..=most).contains(&value) { Ok(value) } else { Err(CUresult::ERROR_INVALID_VALUE) };
    match attribute {
        id::MAX_DYNAMIC_SHARED_SIZE_BYTES => {
            check_dynamic_shared(value, MAX_BLOCK_SHARED_BYTES as i32, kernel.static_shared as i32)?;
            settings.most_dynamic.store(value.unsigned_abs(), Ordering::Relaxed);
        }
        id::PREFERRED_SHARED_MEMORY_CARVEOUT => {
            check_carveout(value)?;
            settings.carveout.store(value, Ordering::Relaxed);
        }
        id::NON_PORTABLE_CLUSTER_SIZE_ALLOWED => settings.large_clusters.store(within(1)?, Ordering::Relaxed),
        id::CLUSTER_SCHEDULING_POLICY_PREFERENCE => settings.scheduling.store(within(2)?, Ordering::Relaxed),
        id::REQUIRED_CLUSTER_WIDTH..=id::REQUIRED_CLUSTER_DEPTH => {
            settings.cluster.set(kernel, (attribute - id::REQUIRED_CLUSTER_WIDTH) as usize, value)?;
        }
        _ => return Err(CUresult::ERROR_INVALID_VALUE),
    }
    Ok(())
}

/// A kernel in a context.
pub(crate) struct Function {
    /// Handle that programs know the function by.
    pub(crate) handle: usize,
    /// Handle of its module.
    pub(crate) module: usize,
    /// Id of the context that its module was loaded into.
    pub(crate) context_id: u64,
    /// Decoded code of the kernel.
    pub(crate) kernel: Arc<Kernel>,
    /// Its name, as a C string.
    pub(crate) name: CString,
    /// Its settings.
    pub(crate) settings: Arc<FunctionSettings>,
    /// Its settings for launches of the old style.
    pub(crate) old: Mutex<OldLaunch>,
}

/// Functions whose module is alive.
static FUNCTIONS: Registry<Function> = Registry::new();

/// Makes a function of a module in a context.
pub(crate) fn register(
    module: usize,
    context_id: u64,
    kernel: Arc<Kernel>,
    settings: Arc<FunctionSettings>,
) -> Arc<Function> {
    let name = CString::new(kernel.name.as_str()).unwrap_or_default();
    let (handle, old) = (new_handle(), Mutex::default());
    let function = Arc::new(Function { handle, module, context_id, kernel, name, settings, old });
    FUNCTIONS.insert(handle, Arc::clone(&function));
    function
}

/// Ends the functions of a module.
pub(crate) fn forget(module: usize) {
    FUNCTIONS.remove_if(|function| function.module == module);
}

/// Returns the function behind a handle. The kernel of a library is not one.
pub(crate) fn resolve(handle: CUfunction) -> Outcome<Arc<Function>> {
    state::ready()?;
    FUNCTIONS.get(handle.address() as usize).ok_or(CUresult::ERROR_INVALID_HANDLE)
}

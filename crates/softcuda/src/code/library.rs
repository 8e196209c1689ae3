//! Libraries: code without a context. Each context that uses a library gets a module of it at first use.
//!
//! Loading only copies the image. As in the real driver, its faults show when the first kernel is looked up.
//!
//! A refusal for want of PTX fails the context if a GPU would run the kernel. The program calls that kernel by its name in the
//! source. If it ignored the error, it would go on with results that were never computed. Other images are refused as on a GPU:
//! those that a program loads by itself, and those without machine code for this device.

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use katydid_cuda_sys::{CUfunction, CUlibrary, CUresult};
use katydid_ptx_exec::Kernel;

use crate::code::function::{self, Function};
use crate::code::function_settings::FunctionSettings;
use crate::code::module::{self, Module};
use crate::code::module_image::{AddressOnlyMemory, Code, CodeRefusal};
use crate::context::stack;
use crate::context::state::Context;
use crate::ffi::{Outcome, report};
use crate::process::handles::{Registry, new_handle};
use crate::process::state;

/// A library: code that each context loads at first use.
pub(crate) struct Library {
    /// Handle that programs know the library by.
    pub(crate) handle: usize,
    code: Code,
    /// Its kernels in the order of the text, once a call has looked them up.
    kernels: OnceLock<Result<Vec<Arc<LibraryKernel>>, CUresult>>,
    /// Its modules, by the id of their context.
    modules: Mutex<HashMap<u64, Arc<Module>>>,
}

/// A kernel of a library: the same in all contexts.
pub(crate) struct LibraryKernel {
    /// Handle that programs know the kernel by.
    pub(crate) handle: usize,
    library: Weak<Library>,
    /// Its name, as a C string.
    pub(crate) name: CString,
    /// Its properties. To run it, each context has its own.
    pub(crate) kernel: Arc<Kernel>,
    /// Its settings, by device.
    settings: Mutex<HashMap<i32, Arc<FunctionSettings>>>,
}

/// Libraries that have not been unloaded.
static LIBRARIES: Registry<Library> = Registry::new();
/// Kernels of those libraries that were looked up.
static KERNELS: Registry<LibraryKernel> = Registry::new();

impl Library {
    /// Locks the table, also while a module is loaded into it.
    fn modules(&self) -> MutexGuard<'_, HashMap<u64, Arc<Module>>> {
        self.modules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns its module in `context`, and loads it at first use.
    pub(crate) fn module(&self, context: &Context) -> Outcome<Arc<Module>> {
        // Held while loading, so that two threads do not both load.
        let mut modules = self.modules();
        if let Some(module) = modules.get(&context.id) {
            return Ok(Arc::clone(module));
        }
        let loaded = module::load(context, &self.code).map_err(|refusal| refusal.code);
        let module = loaded.inspect_err(|code| self.fail(context, *code))?;
        modules.insert(context.id, Arc::clone(&module));
        Ok(module)
    }

    /// Returns its kernels, in the order of the text.
    pub(crate) fn kernels(self: &Arc<Self>) -> Outcome<&[Arc<LibraryKernel>]> {
        let listed = self.kernels.get_or_init(|| {
            let kernels = self.current_kernels()?;
            Ok(kernels.into_iter().map(|kernel| self.list(kernel)).collect())
        });
        // The result of the first use counts in later contexts too.
        listed.as_deref().map_err(|code| *code).inspect_err(|code| {
            if let Ok(context) = stack::usable() {
                self.fail(&context, *code);
            }
        })
    }

    /// Makes a refusal of the code stick to `context`, if a GPU would run that code.
    fn fail(&self, context: &Context, code: CUresult) {
        if code == CUresult::ERROR_NO_BINARY_FOR_GPU && context.healthy().is_ok() && self.code.runs_on_gpus() {
            report(
                "a GPU would run this code, so the context fails: no result that was never computed is taken for one",
            );
            context.fail(code);
        }
    }

    /// Returns the kernels of the module in the current context. Without a usable context it decodes the code just for this.
    fn current_kernels(&self) -> Outcome<Vec<Arc<Kernel>>> {
        if let Ok(context) = stack::usable() {
            return Ok(self.module(&context)?.kernels().to_vec());
        }
        let image = self.code.load(&mut AddressOnlyMemory::default()).map_err(|refusal| refusal.code)?;
        Ok(image.kernels().to_vec())
    }

    /// Gives a kernel its handle, which stays until the library is unloaded.
    fn list(self: &Arc<Self>, kernel: Arc<Kernel>) -> Arc<LibraryKernel> {
        let name = CString::new(kernel.name.as_str()).unwrap_or_default();
        let library = Arc::downgrade(self);
        let listed = LibraryKernel { handle: new_handle(), library, name, kernel, settings: Mutex::default() };
        let listed = Arc::new(listed);
        KERNELS.insert(listed.handle, Arc::clone(&listed));
        listed
    }

    /// Returns the kernel called `name`, always with the same handle.
    pub(crate) fn kernel(self: &Arc<Self>, name: &str) -> Outcome<Arc<LibraryKernel>> {
        let listed = self.kernels()?.iter().find(|kernel| kernel.kernel.name == name);
        listed.cloned().ok_or(CUresult::ERROR_NOT_FOUND)
    }
}

impl LibraryKernel {
    /// Returns its library, unless that is unloaded.
    pub(crate) fn library(&self) -> Outcome<Arc<Library>> {
        self.library.upgrade().ok_or(CUresult::ERROR_INVALID_HANDLE)
    }

    /// Returns its function in `context`.
    pub(crate) fn function(&self, context: &Context) -> Outcome<Arc<Function>> {
        let module = self.library()?.module(context)?;
        module.function_with(&self.kernel.name, |_| self.settings(context.device.ordinal))
    }

    /// Returns its settings for a device.
    pub(crate) fn settings(&self, device: i32) -> Arc<FunctionSettings> {
        let mut settings = self.settings.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(settings.entry(device).or_insert_with(|| FunctionSettings::for_kernel(&self.kernel)))
    }
}

/// `cuLibraryLoadData`.
pub(crate) fn load(code: Result<Code, CodeRefusal>) -> Outcome<Arc<Library>> {
    let code = code.map_err(|refusal| refusal.code)?;
    let (handle, modules) = (new_handle(), Mutex::default());
    let library = Arc::new(Library { handle, code, kernels: OnceLock::new(), modules });
    LIBRARIES.insert(handle, Arc::clone(&library));
    Ok(library)
}

/// `cuLibraryUnload`: ends its kernels and modules too.
pub(crate) fn unload(handle: CUlibrary) -> Outcome {
    let library = LIBRARIES.remove(handle.address() as usize).ok_or(CUresult::ERROR_INVALID_HANDLE)?;
    KERNELS.remove_if(|kernel| kernel.library.as_ptr() == Arc::as_ptr(&library));
    let modules = std::mem::take(&mut *library.modules());
    for module in modules.into_values() {
        // The module is gone already if its context has ended.
        let _ = module::unload(module.handle);
    }
    Ok(())
}

/// The library behind a handle.
pub(crate) fn resolve(handle: CUlibrary) -> Outcome<Arc<Library>> {
    state::ready()?;
    LIBRARIES.get(handle.address() as usize).ok_or(CUresult::ERROR_INVALID_HANDLE)
}

/// The kernel behind a handle.
pub(crate) fn resolve_kernel(handle: usize) -> Outcome<Arc<LibraryKernel>> {
    state::ready()?;
    KERNELS.get(handle).ok_or(CUresult::ERROR_INVALID_HANDLE)
}

/// Returns what a launch or an occupancy query names: a function of `context`, or a library's kernel cast to one.
pub(crate) fn callable(handle: CUfunction, context: &Context) -> Outcome<(Arc<Kernel>, Arc<FunctionSettings>)> {
    match function::resolve(handle) {
        Ok(function) if function.context_id == context.id => {
            Ok((Arc::clone(&function.kernel), Arc::clone(&function.settings)))
        }
        Ok(_) => Err(CUresult::ERROR_INVALID_HANDLE),
        Err(_) => {
            let kernel = resolve_kernel(handle.address() as usize)?;
            let function = kernel.function(context)?;
            Ok((Arc::clone(&function.kernel), Arc::clone(&function.settings)))
        }
    }
}

/// Forgets the modules of an ended context.
pub(crate) fn forget(context: u64) {
    for library in LIBRARIES.all() {
        library.modules().remove(&context);
    }
}

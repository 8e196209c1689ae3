//! Libraries: code without a context. Each context that uses one gets a module of it, at first use.
//!
//! Loading only copies the image; what is wrong with it shows when the first kernel is asked for, as in the real
//! driver.
//!
//! A kernel that a GPU would run, and that is refused for want of PTX, fails the context. Its program calls it by its name in
//! the source: one that does not look at the answer would go on with results that were never computed. An image that a
//! program loads by itself, and one without machine code for this device, is refused as on a GPU.

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
    /// Its kernels in the order of the text, once they have been asked for.
    kernels: OnceLock<Result<Vec<Arc<LibraryKernel>>, CUresult>>,
    /// Its modules, by the id of their context.
    modules: Mutex<HashMap<u64, Arc<Module>>>,
}

/// A kernel of a library: the same in all contexts.
pub(crate) struct LibraryKernel {
    /// Handle that programs know the kernel by.
    pub(crate) handle: usize,
    library: Weak<Library>,
    /// Its name, as C wants it.
    pub(crate) name: CString,
    /// Facts about it; to run, each context has its own.
    pub(crate) kernel: Arc<Kernel>,
    /// What has been set on it, by device.
    settings: Mutex<HashMap<i32, Arc<FunctionSettings>>>,
}

/// Libraries that have not been unloaded.
static LIBRARIES: Registry<Library> = Registry::new();
/// Kernels of those libraries that have been asked for theirs.
static KERNELS: Registry<LibraryKernel> = Registry::new();

impl Library {
    /// The table, locked: also while a module is being loaded into it.
    fn modules(&self) -> MutexGuard<'_, HashMap<u64, Arc<Module>>> {
        self.modules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its module in `context`, loaded if that is the first use.
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

    /// Its kernels, in the order of the text.
    pub(crate) fn kernels(self: &Arc<Self>) -> Outcome<&[Arc<LibraryKernel>]> {
        let listed = self.kernels.get_or_init(|| {
            let kernels = self.look()?;
            Ok(kernels.into_iter().map(|kernel| self.list(kernel)).collect())
        });
        // What the first use found counts in later contexts too.
        listed.as_deref().map_err(|code| *code).inspect_err(|code| {
            if let Ok(context) = stack::usable() {
                self.fail(&context, *code);
            }
        })
    }

    /// Makes the refusal of its code stick to `context`, if a GPU would run that code.
    fn fail(&self, context: &Context, code: CUresult) {
        if code == CUresult::ERROR_NO_BINARY_FOR_GPU && context.healthy().is_ok() && self.code.runs_on_gpus() {
            report(
                "a GPU would run this code, so the context fails: no result that was never computed is taken for one",
            );
            context.fail(code);
        }
    }

    /// The kernels of the module in the current context; without a usable one the code is decoded just to look at it.
    fn look(&self) -> Outcome<Vec<Arc<Kernel>>> {
        if let Ok(context) = stack::usable() {
            return Ok(self.module(&context)?.kernels().to_vec());
        }
        let looked_at = self.code.load(&mut AddressOnlyMemory::default()).map_err(|refusal| refusal.code)?;
        Ok(looked_at.kernels().to_vec())
    }

    /// Gives a kernel its handle, under which it stays until the library goes.
    fn list(self: &Arc<Self>, kernel: Arc<Kernel>) -> Arc<LibraryKernel> {
        let name = CString::new(kernel.name.as_str()).unwrap_or_default();
        let library = Arc::downgrade(self);
        let listed = LibraryKernel { handle: new_handle(), library, name, kernel, settings: Mutex::default() };
        let listed = Arc::new(listed);
        KERNELS.insert(listed.handle, Arc::clone(&listed));
        listed
    }

    /// The kernel called `name`; always the same handle.
    pub(crate) fn kernel(self: &Arc<Self>, name: &str) -> Outcome<Arc<LibraryKernel>> {
        let listed = self.kernels()?.iter().find(|kernel| kernel.kernel.name == name);
        listed.cloned().ok_or(CUresult::ERROR_NOT_FOUND)
    }
}

impl LibraryKernel {
    /// Its library, if that has not been unloaded.
    pub(crate) fn library(&self) -> Outcome<Arc<Library>> {
        self.library.upgrade().ok_or(CUresult::ERROR_INVALID_HANDLE)
    }

    /// Its function in `context`.
    pub(crate) fn function(&self, context: &Context) -> Outcome<Arc<Function>> {
        let module = self.library()?.module(context)?;
        module.function_with(&self.kernel.name, |_| self.settings(context.device.ordinal))
    }

    /// What has been set on it for a device.
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

/// `cuLibraryUnload`: its kernels and modules end with it.
pub(crate) fn unload(handle: CUlibrary) -> Outcome {
    let library = LIBRARIES.remove(handle.address() as usize).ok_or(CUresult::ERROR_INVALID_HANDLE)?;
    KERNELS.remove_if(|kernel| kernel.library.as_ptr() == Arc::as_ptr(&library));
    let modules = std::mem::take(&mut *library.modules());
    for module in modules.into_values() {
        // The module of a context that has ended is gone already.
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

/// What a launch or an occupancy question names: a function of `context`, or a library's kernel, cast to one.
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

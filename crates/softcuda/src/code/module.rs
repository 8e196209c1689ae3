//! Modules: programs loaded into a context, with their variables in its device's memory.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};

use katydid_cuda_sys::{CUmodule, CUresult};
use katydid_ptx_exec::{GlobalMemory, Kernel, Program, ReferenceKind};

use crate::code::function::{self, Function};
use crate::code::function_settings::FunctionSettings;
use crate::code::module_image::{self, Code, CodeRefusal};
use crate::context::contexts;
use crate::context::state::Context;
use crate::copy::transfer::{self, AccessRange};
use crate::ffi::Outcome;
use crate::memory::space::{self, Access};
use crate::memory::{allocation, managed};
use crate::process::handles::{Registry, new_handle};
use crate::process::{settings, state};
use crate::texture::reference;

/// A module, loaded into a context.
pub(crate) struct Module {
    /// Handle that programs know the module by.
    pub(crate) handle: usize,
    /// Handle of the context it was loaded into.
    context: usize,
    /// Id of the context it was loaded into.
    pub(crate) context_id: u64,
    program: Program,
    /// Addresses of its variables.
    variables: Vec<u64>,
    /// Functions that were looked up, by name.
    functions: Mutex<BTreeMap<String, Arc<Function>>>,
}

/// Modules that have not been unloaded, including those of libraries.
static MODULES: Registry<Module> = Registry::new();

/// Allocates variables in the memory of a context.
struct Variables<'context> {
    context: &'context Context,
    addresses: Vec<u64>,
}

impl Variables<'_> {
    /// Fills memory with zeroes: reused memory may hold anything.
    fn clear(&self, at: u64, size: u64) -> Option<u64> {
        let span = AccessRange::reached(self.context, at, size, Access::ReadWrite).ok()?;
        transfer::fill(&span, &[0], size, 1, 0).ok()?;
        Some(at)
    }
}

impl GlobalMemory for Variables<'_> {
    fn allocate(&mut self, size: u64, align: u64) -> Option<u64> {
        let at = allocation::allocate_aligned(self.context, size, align).ok()?;
        self.addresses.push(at);
        self.clear(at, size)
    }

    fn allocate_managed(&mut self, size: u64, align: u64) -> Option<u64> {
        let at = managed::allocate_aligned(self.context, size, align).ok()?;
        self.addresses.push(at);
        self.clear(at, size)
    }

    fn write(&mut self, address: u64, bytes: &[u8]) {
        let span = AccessRange::reached(self.context, address, bytes.len() as u64, Access::ReadWrite);
        // The memory from `allocate` is always there. A write outside of it is a bug, which must not reach other memory.
        let _ = span.and_then(|span| transfer::write(&span, bytes));
    }
}

impl Module {
    /// Locks the functions made so far.
    fn functions(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Function>>> {
        self.functions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the function called `name`, always with the same handle.
    pub(crate) fn function(&self, name: &str) -> Outcome<Arc<Function>> {
        self.function_with(name, FunctionSettings::for_kernel)
    }

    /// Like [`Self::function`], but `settings` makes the settings of a new one.
    pub(crate) fn function_with(
        &self,
        name: &str,
        settings: impl FnOnce(&Kernel) -> Arc<FunctionSettings>,
    ) -> Outcome<Arc<Function>> {
        let kernel = self.kernel(name)?;
        let mut functions = self.functions();
        let function = functions.entry(name.to_owned()).or_insert_with(|| {
            let settings = settings(&kernel);
            function::register(self.handle, self.context_id, kernel, settings)
        });
        Ok(Arc::clone(function))
    }

    /// The kernel called `name`.
    pub(crate) fn kernel(&self, name: &str) -> Outcome<Arc<Kernel>> {
        self.program.kernel(name).ok_or(CUresult::ERROR_NOT_FOUND)
    }

    /// Returns all kernels, in the order of the text.
    pub(crate) fn kernels(&self) -> &[Arc<Kernel>] {
        self.program.kernels()
    }

    /// Returns address and size of the variable called `name`.
    pub(crate) fn global(&self, name: &str) -> Outcome<(u64, u64)> {
        self.program.global(name).ok_or(CUresult::ERROR_NOT_FOUND)
    }

    /// Returns address and size of the managed variable called `name`.
    pub(crate) fn managed(&self, name: &str) -> Outcome<(u64, u64)> {
        if self.program.is_managed(name) { self.global(name) } else { Err(CUresult::ERROR_NOT_FOUND) }
    }

    /// Returns the address of the texture or surface reference called `name`.
    pub(crate) fn reference(&self, name: &str, is_surface: bool) -> Outcome<u64> {
        let kind = if is_surface { ReferenceKind::Surface } else { ReferenceKind::Texture };
        let is_one = self.program.reference(name) == Some(kind);
        let variable = is_one.then(|| self.program.global(name)).flatten();
        variable.map(|(address, _)| address).ok_or(CUresult::ERROR_NOT_FOUND)
    }

    /// Describes the code for a compiler's log: the needs of each kernel.
    pub(crate) fn describe(&self) -> String {
        module_image::describe(&self.program)
    }

    /// Ends its functions, and frees its variables once no work can use them.
    fn end(&self) {
        function::forget(self.handle);
        reference::forget_module(self.handle);
        if let Some(context) = contexts::living(self.context) {
            context.drain();
            context.output.flush();
        }
        release(&self.variables);
    }
}

/// Frees variables, by their first addresses.
fn release(addresses: &[u64]) {
    let regions: Vec<_> = addresses.iter().filter_map(|&at| space::write().remove(at)).collect();
    space::quiet();
    for region in regions {
        let _ = allocation::give_back(&region);
    }
}

/// Occupies, once, the memory in which the variables of the first module would lie. A test asks for this.
fn displace(context: &Context) {
    static DISPLACED: Once = Once::new();
    DISPLACED.call_once(|| {
        let bytes = settings::displacement();
        if bytes > 0 {
            // The memory is freed with the context. Without room, nothing is displaced.
            let _ = allocation::allocate_aligned(context, bytes, 1);
        }
    });
}

/// Loads code into `context`.
pub(crate) fn load(context: &Context, code: &Code) -> Result<Arc<Module>, CodeRefusal> {
    context.output.flush();
    displace(context);
    let mut variables = Variables { context, addresses: Vec::new() };
    let program = code.load(&mut variables).inspect_err(|_| release(&variables.addresses))?;
    let module = Arc::new(Module {
        handle: new_handle(),
        context: context.handle,
        context_id: context.id,
        program,
        variables: variables.addresses,
        functions: Mutex::default(),
    });
    MODULES.insert(module.handle, Arc::clone(&module));
    Ok(module)
}

/// Returns the modules of a context, including those of its libraries.
pub(crate) fn of_context(context: u64) -> Vec<Arc<Module>> {
    MODULES.all().into_iter().filter(|module| module.context_id == context).collect()
}

/// The module behind a handle.
pub(crate) fn resolve(handle: CUmodule) -> Outcome<Arc<Module>> {
    state::ready()?;
    MODULES.get(handle.address() as usize).ok_or(CUresult::ERROR_INVALID_HANDLE)
}

/// `cuModuleUnload`, also for a library's module when the library goes.
pub(crate) fn unload(handle: usize) -> Outcome {
    MODULES.remove(handle).map(|module| module.end()).ok_or(CUresult::ERROR_INVALID_HANDLE)
}

/// Ends the modules of an ended context. Their variables are freed with the rest of its memory.
pub(crate) fn forget(context: u64) {
    for module in MODULES.remove_if(|module| module.context_id == context) {
        function::forget(module.handle);
    }
}

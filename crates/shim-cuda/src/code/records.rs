//! The records of code: libraries and modules, kernels and functions, which refer to each other.
//!
//! A library has a module in each context, and each of its kernels a function. A record holds all that programs can ask
//! about its object, so that a launch looks nothing up.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use katydid_client::slab::SlabSlot;
use katydid_cuda_sys::{CUfunction, CUkernel, CUlibrary, CUmodule, CUresult};
use katydid_driver_rules::state::launch::OldLaunch;
use katydid_wire::message::kdFunctionFacts;

use crate::code::properties::Code;
use crate::context::record::Context;
use crate::context::{device, stack};
use crate::ffi::arguments::handle;
use crate::ffi::handle::{Handle, HandleTable, OwningContext, Wire, object};
use crate::process::session::shim;

/// Loaded libraries.
pub(crate) static LIBRARIES: HandleTable<Library> = HandleTable::new();

impl Handle for CUlibrary {
    type Object = Library;

    fn table() -> &'static HandleTable<Library> {
        &LIBRARIES
    }

    fn value(self) -> usize {
        self.0.addr()
    }
}

impl Wire for CUlibrary {
    fn wire(self) -> Result<u32, CUresult> {
        object(self).map(|it| it.wire())
    }
}

/// Modules of all contexts.
pub(crate) static MODULES: HandleTable<Module> = HandleTable::new();

impl Handle for CUmodule {
    type Object = Module;

    fn table() -> &'static HandleTable<Module> {
        &MODULES
    }

    fn value(self) -> usize {
        self.0.addr()
    }
}

impl Wire for CUmodule {
    fn wire(self) -> Result<u32, CUresult> {
        object(self).map(|it| it.wire())
    }
}

impl OwningContext for CUmodule {
    fn owning_context(self) -> Result<u32, CUresult> {
        object(self).map(|it| it.context.wire())
    }
}

/// Kernels that were asked for.
pub(crate) static KERNELS: HandleTable<Kernel> = HandleTable::new();

impl Handle for CUkernel {
    type Object = Kernel;

    fn table() -> &'static HandleTable<Kernel> {
        &KERNELS
    }

    fn value(self) -> usize {
        self.0.addr()
    }
}

impl Wire for CUkernel {
    fn wire(self) -> Result<u32, CUresult> {
        object(self).map(|it| it.wire())
    }
}

/// Functions that were asked for, of all contexts.
pub(crate) static FUNCTIONS: HandleTable<Function> = HandleTable::new();

impl Handle for CUfunction {
    type Object = Function;

    fn table() -> &'static HandleTable<Function> {
        &FUNCTIONS
    }

    fn value(self) -> usize {
        self.0.addr()
    }
}

impl Wire for CUfunction {
    fn wire(self) -> Result<u32, CUresult> {
        object(self).map(|it| it.wire())
    }
}

/// An image that was loaded without a context.
pub(crate) struct Library {
    pub(crate) slot: SlabSlot,
    /// Kernels that the program has asked for so far, by name.
    pub(super) kernels: Mutex<HashMap<Vec<u8>, Arc<Kernel>>>,
    /// Its module in each context, by the context's handle.
    pub(super) modules: Mutex<Vec<(usize, Arc<Module>)>>,
}

impl Library {
    /// The number that messages carry.
    pub(crate) fn wire(&self) -> u32 {
        self.slot.index + 1
    }

    /// Forgets its module in a context that ended.
    pub(crate) fn forget(&self, context: &Context) {
        self.modules.lock().unwrap_or_else(PoisonError::into_inner).retain(|(other, _)| *other != context.slot.handle);
        for kernel in self.kernels.lock().unwrap_or_else(PoisonError::into_inner).values() {
            kernel.forget(context);
        }
    }
}

/// A module in its context.
pub(crate) struct Module {
    pub(crate) slot: SlabSlot,
    pub(crate) context: Arc<Context>,
    /// The library that the module belongs to, if any.
    pub(super) library: Option<Arc<Library>>,
    /// Functions that the program has asked for so far, by name.
    pub(super) functions: Mutex<HashMap<Vec<u8>, Arc<Function>>>,
}

impl Module {
    /// Makes the record of a library's module in a context, or of a module of its own.
    pub(crate) fn new(slot: SlabSlot, context: Arc<Context>, library: Option<Arc<Library>>) -> Self {
        Self { slot, context, library, functions: Mutex::default() }
    }

    /// The number that messages carry.
    pub(crate) fn wire(&self) -> u32 {
        self.slot.index + 1
    }

    /// Its handle as the program has it.
    pub(crate) fn handle(&self) -> CUmodule {
        CUmodule(handle(self.slot.handle))
    }

    /// Returns whether this is the module of the library with that handle.
    pub(crate) fn is_library(&self, handle: usize) -> bool {
        self.library.as_ref().is_some_and(|library| library.slot.handle == handle)
    }
}

/// A kernel of a library, the same in every context.
pub(crate) struct Kernel {
    pub(crate) slot: SlabSlot,
    /// Handle of its library.
    pub(crate) library: usize,
    pub(super) name: CString,
    /// Known from the first query in a context on.
    code: OnceLock<Code>,
    /// Properties for each device, once the program set one of them for a device.
    tuned: OnceLock<Box<[Code]>>,
    /// Its function in each context, by the context's handle.
    pub(super) functions: Mutex<Vec<(usize, Arc<Function>)>>,
}

impl Kernel {
    /// Makes the record of a library's kernel, with its code if the worker could describe it.
    pub(crate) fn new(slot: SlabSlot, library: usize, name: CString, code: Option<Code>) -> Self {
        let code = code.map_or_else(OnceLock::new, OnceLock::from);
        Self { slot, library, name, code, tuned: OnceLock::new(), functions: Mutex::default() }
    }

    /// Returns its properties.
    ///
    /// # Errors
    ///
    /// `ERROR_INVALID_CONTEXT` when it was found without a context and there is none now either.
    pub(crate) fn code(&self) -> Result<&Code, CUresult> {
        if let Some(code) = self.code.get() {
            return Ok(code);
        }
        let session = &shim()?.session;
        let facts = session.call(stack::wire()?, &kdFunctionFacts { function: 0, kernel: self.wire() })?.facts;
        let code = Code::decode(&facts).ok_or_else(|| session.broken("kdFunctionFacts"))?;
        Ok(self.code.get_or_init(|| code))
    }

    /// Returns its properties on a device: attributes that were set for another device do not count there.
    ///
    /// # Errors
    ///
    /// As [`Kernel::code`].
    #[inline]
    pub(crate) fn code_on(&self, device: u32) -> Result<&Code, CUresult> {
        match self.tuned.get().and_then(|codes| codes.get(device as usize)) {
            Some(code) => Ok(code),
            None => self.code(),
        }
    }

    /// Returns its properties on a device, for a change.
    pub(super) fn tuned_on(&self, device: u32) -> Result<&Code, CUresult> {
        let (code, devices) = (self.code()?, device::all()?);
        let codes = self.tuned.get_or_init(|| devices.iter().map(|_| code.copy()).collect());
        codes.get(device as usize).ok_or(CUresult::ERROR_INVALID_DEVICE)
    }

    /// The number that messages carry.
    pub(crate) fn wire(&self) -> u32 {
        self.slot.index + 1
    }

    /// Its handle as the program has it.
    pub(crate) fn handle(&self) -> CUkernel {
        CUkernel(handle(self.slot.handle))
    }

    /// Its name in the image.
    pub(crate) fn name(&self) -> &CStr {
        &self.name
    }

    /// Forgets its function in a context that ended.
    pub(crate) fn forget(&self, context: &Context) {
        let mut functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        functions.retain(|(other, _)| *other != context.slot.handle);
    }

    /// Applies a changed attribute to the kernel's functions on the device too.
    pub(super) fn keep_on(&self, device: u32, id: u32, value: i32) {
        let functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        let of_device = functions.iter().filter(|(_, function)| function.context.device == device);
        of_device.for_each(|(_, function)| function.code.keep(id, value));
    }
}

/// A function of a module, in one context.
pub(crate) struct Function {
    pub(crate) slot: SlabSlot,
    pub(crate) context: Arc<Context>,
    pub(super) name: CString,
    /// The module's handle; for a kernel's function it is found at the first query.
    pub(super) module: OnceLock<usize>,
    /// The kernel that the function belongs to, if any.
    pub(super) kernel: Option<Arc<Kernel>>,
    pub(crate) code: Code,
    /// State that the program set on it for legacy launches.
    pub(crate) old: Mutex<OldLaunch>,
}

impl Function {
    /// Makes the record of a module's function.
    pub(crate) fn of_module(slot: SlabSlot, context: Arc<Context>, name: CString, module: usize, code: Code) -> Self {
        Self { slot, context, name, module: OnceLock::from(module), kernel: None, code, old: Mutex::default() }
    }

    /// Makes the record of a kernel's function in a context.
    pub(crate) fn of_kernel(slot: SlabSlot, context: Arc<Context>, kernel: Arc<Kernel>, code: Code) -> Self {
        let name = kernel.name().to_owned();
        Self { slot, context, name, module: OnceLock::new(), kernel: Some(kernel), code, old: Mutex::default() }
    }

    /// Its name in the module.
    pub(crate) fn name(&self) -> &CStr {
        &self.name
    }

    /// The number that messages carry.
    pub(crate) fn wire(&self) -> u32 {
        self.slot.index + 1
    }

    /// Its handle as the program has it.
    pub(crate) fn handle(&self) -> CUfunction {
        CUfunction(handle(self.slot.handle))
    }

    /// Returns whether it is the function of one of this library's kernels.
    pub(crate) fn is_of_library(&self, library: usize) -> bool {
        self.kernel.as_ref().is_some_and(|kernel| kernel.library == library)
    }
}

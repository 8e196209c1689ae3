//! Functions and kernels: lookup, properties, attributes.

#![expect(unsafe_code, reason = "calls the driver")]

use katydid_cuda_sys::{CUfunction, CUkernel, CUlibrary, CUmodule, CUresult};
use katydid_wire::frame::FrameHead;
use katydid_wire::message::{
    kdFunctionFacts, kdFunctionFactsReply, kdFunctionSetAttribute, kdFunctionSetCacheConfig, kdKernelFunction,
    kdKernelFunctionReply, kdLibraryKernel, kdLibraryKernelReply, kdModuleFunction, kdModuleFunctionReply,
};

use crate::calls::fault::Fault;
use crate::device::ask::ask;
use crate::device::gather;
use crate::handlers::code::module::name;
use crate::handlers::{CallResult, EnqueueResult, success};
use crate::memory::holdings::CodeOrigin;
use crate::state::Session;

/// A function or a kernel: messages name one of the two and leave the other 0.
pub(crate) enum Code {
    /// `CUfunction` of a module.
    Function(CUfunction),
    /// `CUkernel` of a library.
    Kernel(CUkernel),
}

impl Code {
    /// Returns the object of the id that is not 0.
    ///
    /// # Errors
    ///
    /// `CUDA_ERROR_INVALID_HANDLE` unless exactly one is given and alive.
    pub(crate) fn of(session: &mut Session, head: &FrameHead, function: u32, kernel: u32) -> Result<Self, Fault> {
        match (function, kernel) {
            (0, 0) => Err(CUresult::ERROR_INVALID_HANDLE.into()),
            (_, 0) => Ok(Self::Function(session.handle(head, function)?)),
            (0, _) => Ok(Self::Kernel(session.handle(head, kernel)?)),
            _ => Err(CUresult::ERROR_INVALID_HANDLE.into()),
        }
    }

    /// Returns the object of the id that is not 0, for a query. The driver loads it in the current context if it is not
    /// loaded yet.
    pub(crate) fn requested(
        session: &mut Session,
        head: &FrameHead,
        function: u32,
        kernel: u32,
    ) -> Result<Self, Fault> {
        let code = Self::of(session, head, function, kernel)?;
        session.journal.used(kernel, session.current, head.sequence);
        Ok(code)
    }

    /// Returns it for launches and occupancy: the driver itself tells a kernel from a function.
    pub(crate) fn as_function(&self) -> CUfunction {
        match self {
            Self::Function(function) => *function,
            Self::Kernel(kernel) => CUfunction(kernel.0),
        }
    }
}

/// Finds a function of a module.
pub(crate) fn kdModuleFunction(
    session: &mut Session,
    head: &FrameHead,
    message: kdModuleFunction<'_>,
) -> CallResult<kdModuleFunctionReply> {
    session.tables.functions.check_new(message.function)?;
    let module: CUmodule = session.handle(head, message.module)?;
    let name = name(message.name)?;
    // SAFETY: the output is a local, the name ends with a NUL.
    let function = ask(|out| unsafe { session.driver().cuModuleGetFunction(out, module, name.as_ptr()) })?;
    let facts = gather::function(session.driver(), function);
    session.hold_function(CodeOrigin::Module(message.module), &facts)?;
    session.bind(message.function, function)?;
    success(kdModuleFunctionReply { facts: facts.encode() })
}

/// Finds a kernel of a library.
pub(crate) fn kdLibraryKernel(
    session: &mut Session,
    head: &FrameHead,
    message: kdLibraryKernel<'_>,
) -> CallResult<kdLibraryKernelReply> {
    session.tables.kernels.check_new(message.kernel)?;
    let library: CUlibrary = session.handle(head, message.library)?;
    let name = name(message.name)?;
    // SAFETY: the output is a local, the name ends with a NUL.
    let kernel = ask(|out| unsafe { session.driver().cuLibraryGetKernel(out, library, name.as_ptr()) })?;
    let facts = gather::kernel(session.driver(), kernel);
    session.hold_function(CodeOrigin::Library(message.library), &facts)?;
    session.tables.kernels.set(message.kernel, kernel, 0)?;
    success(kdLibraryKernelReply { facts: facts.encode() })
}

/// Returns a kernel's function in the current context.
pub(crate) fn kdKernelFunction(
    session: &mut Session,
    head: &FrameHead,
    message: kdKernelFunction,
) -> CallResult<kdKernelFunctionReply> {
    session.tables.functions.check_new(message.function)?;
    let kernel: CUkernel = session.handle(head, message.kernel)?;
    // SAFETY: the output is a local.
    let function = ask(|out| unsafe { session.driver().cuKernelGetFunction(out, kernel) })?;
    session.bind(message.function, function)?;
    success(kdKernelFunctionReply { facts: gather::function(session.driver(), function).encode() })
}

/// Returns the facts of a function or kernel again, in the current context.
pub(crate) fn kdFunctionFacts(
    session: &mut Session,
    head: &FrameHead,
    message: kdFunctionFacts,
) -> CallResult<kdFunctionFactsReply> {
    let code = Code::requested(session, head, message.function, message.kernel)?;
    let facts = match code {
        Code::Function(function) => gather::function(session.driver(), function),
        Code::Kernel(kernel) => gather::kernel(session.driver(), kernel),
    };
    success(kdFunctionFactsReply { facts: facts.encode() })
}

/// Notes that setting a kernel's property on a device loads its library in all contexts there.
fn note_device(session: &mut Session, head: &FrameHead, kernel: u32, device: i32) {
    for context in session.contexts_without(kernel, device) {
        session.journal.used(kernel, context, head.sequence);
    }
}

/// Sets an attribute; the program has checked the value against the function's facts.
pub(crate) fn kdFunctionSetAttribute(
    session: &mut Session,
    head: &FrameHead,
    message: kdFunctionSetAttribute,
) -> EnqueueResult {
    let (attribute, value) = (message.attribute, message.value);
    Ok(match Code::of(session, head, message.function, message.kernel)? {
        // SAFETY: takes a live handle and numbers.
        Code::Function(function) => unsafe { session.driver().cuFuncSetAttribute(function, attribute, value) },
        Code::Kernel(kernel) => {
            note_device(session, head, message.kernel, message.device);
            // SAFETY: as above.
            unsafe { session.driver().cuKernelSetAttribute(attribute, value, kernel, message.device) }
        }
    })
}

/// Sets the preferred division between cache and shared memory.
pub(crate) fn kdFunctionSetCacheConfig(
    session: &mut Session,
    head: &FrameHead,
    message: kdFunctionSetCacheConfig,
) -> EnqueueResult {
    Ok(match Code::of(session, head, message.function, message.kernel)? {
        // SAFETY: takes a live handle and a number.
        Code::Function(function) => unsafe { session.driver().cuFuncSetCacheConfig(function, message.config) },
        Code::Kernel(kernel) => {
            note_device(session, head, message.kernel, message.device);
            // SAFETY: as above.
            unsafe { session.driver().cuKernelSetCacheConfig(kernel, message.config, message.device) }
        }
    })
}

//! The target of a launch.

use std::ffi::CStr;
use std::sync::Arc;

use katydid_cuda_sys::{CUfunction, CUresult};

use crate::code::lookup;
use crate::code::properties::Code;
use crate::code::records::{Function, Kernel};
use crate::context::record::ContextIds;
use crate::ffi::handle::object;

/// The target of a launch: programs may pass a kernel in place of a function.
pub(crate) enum LaunchTarget {
    Function(Arc<Function>),
    Kernel(Arc<Kernel>),
}

impl LaunchTarget {
    /// Resolves a handle.
    ///
    /// # Errors
    ///
    /// `ERROR_INVALID_HANDLE` for a handle of neither kind.
    pub(crate) fn of(function: CUfunction) -> Result<Self, CUresult> {
        object(function).map(Self::Function).or_else(|_| lookup::kernel_of_function(function).map(Self::Kernel))
    }

    /// Wire ids of function and kernel, one of them 0.
    #[inline]
    pub(crate) fn wire(&self) -> (u32, u32) {
        match self {
            Self::Function(function) => (function.wire(), 0),
            Self::Kernel(kernel) => (0, kernel.wire()),
        }
    }

    /// Its name in the module.
    pub(crate) fn name(&self) -> &CStr {
        match self {
            Self::Function(function) => function.name(),
            Self::Kernel(kernel) => kernel.name(),
        }
    }

    /// Refuses a function in a stream of another context; kernels run in all of them.
    #[inline]
    pub(crate) fn check_context(&self, of_stream: ContextIds) -> Result<(), CUresult> {
        match self {
            Self::Function(function) if function.context.wire() != of_stream.owner => {
                Err(CUresult::ERROR_INVALID_HANDLE)
            }
            _ => Ok(()),
        }
    }

    /// Returns its properties on a device; a function's are those in its own context.
    ///
    /// # Errors
    ///
    /// As [`Kernel::code`].
    #[inline]
    pub(crate) fn code_on(&self, device: u32) -> Result<&Code, CUresult> {
        match self {
            Self::Function(function) => Ok(&function.code),
            Self::Kernel(kernel) => kernel.code_on(device),
        }
    }
}

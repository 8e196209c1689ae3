//! What a launch runs.

use std::ffi::CStr;
use std::sync::Arc;

use katydid_cuda_sys::{CUfunction, CUresult};

use crate::code::lookup;
use crate::code::properties::Code;
use crate::code::records::{Function, Kernel};
use crate::context::record::ContextIds;
use crate::ffi::handle::object;

/// What a launch runs: programs pass kernels where functions are meant.
pub(crate) enum LaunchTarget {
    Function(Arc<Function>),
    Kernel(Arc<Kernel>),
}

impl LaunchTarget {
    /// # Errors
    ///
    /// `ERROR_INVALID_HANDLE` for what is neither.
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

    /// Its name, as its module has it.
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

    /// What is known of it on a device, which is that of its context if it has one.
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

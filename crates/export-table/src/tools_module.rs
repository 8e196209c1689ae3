//! The table TOOLS_MODULE (99 words): cuFFT enumerates the kernels of the modules it makes.
//!
//! Slot 7 calls a function for each kernel of a module and returns their number. The function gets the public handle; cuFFT
//! reads nothing behind it (measured with handles into inaccessible memory).

#![expect(unsafe_code, reason = "calls a function of a C caller")]

use std::ffi::{c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::catalogue;
use crate::facts::{Handle, facts};
use crate::table::{Word, WordTable};

pub(crate) static TABLE: WordTable<99> =
    WordTable::sized::<{ catalogue::TOOLS_MODULE_INDEX }>(&[(7, each_kernel as *const () as Word)], &[93]);

/// Called with the caller's argument, a function's handle, and the function's name.
type Visit = unsafe extern "C" fn(opaque: *mut c_void, function: Handle, name: *const c_char);

unsafe extern "C" fn each_kernel(_context: Handle, module: Handle, visit: Option<Visit>, opaque: *mut c_void) -> i32 {
    let kernels = catch_unwind(AssertUnwindSafe(|| facts().and_then(|facts| facts.module_functions(module))));
    let (Ok(Ok(kernels)), Some(visit)) = (kernels, visit) else { return 0 };
    for (function, name) in &kernels {
        // SAFETY: the caller's own function, with its own argument; the name lives until the last call is over.
        unsafe { visit(opaque, *function, name.as_ptr()) };
    }
    i32::try_from(kernels.len()).unwrap_or(i32::MAX)
}

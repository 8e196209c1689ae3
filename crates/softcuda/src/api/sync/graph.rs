//! Graphs and stream capture. Each function calls the shared model's, once the library is ready.

#![expect(unsafe_code, reason = "functions of the driver API take raw pointers")]

use std::ffi::{c_char, c_void};

use katydid_cuda_sys::*;

use crate::ffi::Outcome;
use crate::graphs;
use crate::process::state;

macro_rules! emit {
    ($($name:ident($($param:ident: $ty:ty),*) $method:ident;)*) => {$(
        #[doc = concat!("`", stringify!($method), "` of the model.")]
        ///
        /// # Safety
        ///
        /// Pointers must be null or valid as the driver API demands.
        #[allow(non_snake_case, clippy::too_many_arguments, reason = "the vendor's names and parameters")]
        pub(crate) unsafe fn $name($($param: $ty),*) -> CUresult {
            let body = || -> Outcome {
                state::ready()?;
                // SAFETY: the caller's promise, above.
                unsafe { graphs::of_process().$method($($param),*) }
            };
            body().into()
        }
    )*};
}

katydid_graph::for_each_function!(emit);

//! Graphs and stream capture: the shared model keeps them, and an instantiation sends them to the worker.
//!
//! So a capture never reaches the driver: work for a captured stream becomes a node of the model, and the worker's own work
//! cannot spoil anything. Copies from and to memory that only the program reaches run in two parts (`host_work`): the
//! driver's, and the program's in an upcall.
#![expect(unsafe_code, reason = "functions of the driver API take raw pointers")]

mod backend;
pub(crate) mod capture;
mod describe;
pub(crate) mod host_work;
pub(crate) mod model;
pub(crate) mod operation;

use std::ffi::{c_char, c_void};

use katydid_cuda_sys::*;

use model::of_process;

macro_rules! emit {
    ($($name:ident($($param:ident: $ty:ty),*) $method:ident;)*) => {$(
        #[doc = concat!("`", stringify!($method), "` of the model.")]
        ///
        /// # Safety
        ///
        /// Pointers are null or valid as the driver API demands.
        #[allow(non_snake_case, clippy::too_many_arguments, reason = "the vendor's names and parameters")]
        pub(crate) unsafe fn $name($($param: $ty),*) -> Result<(), CUresult> {
            // SAFETY: handed on.
            unsafe { of_process().$method($($param),*) }
        }
    )*};
}

katydid_graph::for_each_function!(emit);

//! C types and constants of the CUDA driver ABI, as Linux x86-64 has them.
//!
//! Only types that code here reads or writes are laid out; the others are opaque, with the size that the
//! vendor's header gives. Handles are distinct types over one pointer, so that two kinds cannot be mixed.
//! [`Function`] and the table behind `cuGetProcAddress` are generated from `spec/cuda.api`.

#![allow(non_camel_case_types, non_snake_case, non_upper_case_globals, reason = "names are the vendor's")]

mod attribute;
mod callback;
mod function;
mod graph;
mod handle;
mod launch_attributes;
mod pod;
mod result;
mod scalar;
#[macro_use]
mod structure;

pub use attribute::*;
pub use callback::*;
pub use function::{Function, FunctionClass, Lookup, proc_address};
pub use graph::*;
pub use handle::*;
pub use launch_attributes::*;
pub use pod::Pod;
pub use result::CUresult;
pub use scalar::*;
pub use std::ffi::{c_char as char, c_void as void};
pub use structure::*;

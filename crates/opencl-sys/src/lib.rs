//! C types and constants of the OpenCL ABI, as Linux x86-64 has them.
//!
//! Handles are distinct types over one pointer, so that two kinds cannot be mixed. [`Function`] and [`Dispatch`], the
//! table that every object of a driver points to, are generated from `spec/opencl.api`.

#![allow(non_camel_case_types, non_snake_case, reason = "names are the vendor's")]

mod code;
pub mod constant;
mod handle;
mod table;

pub use code::Code;
pub use handle::*;
pub use std::ffi::{c_char as char, c_void as void};
pub use table::{Dispatch, Function};

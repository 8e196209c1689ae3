//! Copies and fills, of memory and arrays.

pub(crate) mod array_copy;
pub(crate) mod batch;
pub(crate) mod fill;
pub(crate) mod linear;
pub(crate) mod packed;
pub(crate) mod rows;
pub(crate) mod transfer;

//! Copies and fills, of memory and arrays.

pub(crate) mod array_copy;
pub(crate) mod array_rows;
pub(crate) mod batch;
pub(crate) mod fill;
pub(crate) mod linear;
pub(crate) mod packed;
pub(crate) mod pattern;
pub(crate) mod rows;
pub(crate) mod side;
pub(crate) mod slices;
pub(crate) mod transfer;

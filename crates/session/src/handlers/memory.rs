//! Messages that copy, fill, share or map memory.

pub(crate) mod copy;
pub(crate) mod device;
pub(crate) mod fill;
pub(crate) mod host;
pub(crate) mod packed;
pub(crate) mod rows;
pub(crate) mod share;
pub(crate) mod staging_pieces;
pub(crate) mod virtual_memory;

pub(crate) use copy::*;
pub(crate) use device::*;
pub(crate) use fill::*;
pub(crate) use host::*;
pub(crate) use packed::*;
pub(crate) use rows::*;
pub(crate) use share::*;
pub(crate) use virtual_memory::*;

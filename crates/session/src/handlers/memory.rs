//! Messages that copy, fill, share or map memory.

pub(crate) mod copy;
pub(crate) mod device;
pub(crate) mod fill;
pub(crate) mod host;
pub(crate) mod packed;
pub(crate) mod pieces;
pub(crate) mod rows;
pub(crate) mod share;
pub(crate) mod virtual_memory;

//! The exported symbols: generated entries, their return values, and the loader's table.

pub(crate) mod arguments;
pub(crate) mod entry;
pub(crate) mod icd;
pub(crate) mod returns;

//! Modules, libraries and kernels, with their properties.

pub(crate) mod function;
pub(crate) mod jit;
pub(crate) mod kernel;
pub(crate) mod library;
pub(crate) mod link;
pub(crate) mod lookup;
pub(crate) mod module;
pub(crate) mod module_image;
pub(crate) mod properties;
pub(crate) mod records;
pub(crate) mod variable;

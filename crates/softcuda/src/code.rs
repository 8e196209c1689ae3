//! Modules, libraries, kernels, launches and their properties.

pub(crate) mod clusters;
pub(crate) mod function;
pub(crate) mod function_settings;
pub(crate) mod jit;
pub(crate) mod launch;
pub(crate) mod library;
pub(crate) mod linker;
pub(crate) mod module;
pub(crate) mod module_image;
pub(crate) mod occupancy;
pub(crate) mod output;
pub(crate) mod params;

//! Messages about code: images, modules, libraries, kernels, launches.

pub(crate) mod function;
pub(crate) mod launch;
pub(crate) mod library;
pub(crate) mod link;
pub(crate) mod module;
pub(crate) mod module_image;
pub(crate) mod occupancy;
pub(crate) mod options;

pub(crate) use function::*;
pub(crate) use launch::*;
pub(crate) use library::*;
pub(crate) use link::*;
pub(crate) use module::*;
pub(crate) use module_image::*;
pub(crate) use occupancy::*;

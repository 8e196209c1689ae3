//! Messages about code: images, modules, libraries, kernels, launches.

pub(crate) mod function;
pub(crate) mod image;
pub(crate) mod launch;
pub(crate) mod library;
pub(crate) mod link;
pub(crate) mod module;
pub(crate) mod occupancy;
pub(crate) mod options;

pub(crate) use function::*;
pub(crate) use image::*;
pub(crate) use launch::*;
pub(crate) use library::*;
pub(crate) use link::*;
pub(crate) use module::*;
pub(crate) use occupancy::*;

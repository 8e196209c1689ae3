//! Messages about code: images, modules, libraries, kernels, launches.

pub(crate) mod function;
pub(crate) mod image;
pub(crate) mod launch;
pub(crate) mod library;
pub(crate) mod link;
pub(crate) mod module;
pub(crate) mod occupancy;
pub(crate) mod options;

//! Pinned files that the checks need and that are not in the tree: toolkits, drivers, CRIU.

pub(crate) mod criu;
pub(crate) mod cudart;
pub(crate) mod debian;
pub(crate) mod opencl;
pub(crate) mod opencl_intel;
pub(crate) mod opencl_loader;
pub(crate) mod packages;
pub(crate) mod setup;

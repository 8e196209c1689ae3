//! What the checks need and do not hold themselves: toolkits, drivers, CRIU, fetched by pins.

pub(crate) mod criu;
pub(crate) mod cudart;
pub(crate) mod debian;
pub(crate) mod opencl;
pub(crate) mod opencl_intel;
pub(crate) mod opencl_loader;
pub(crate) mod packages;
pub(crate) mod setup;

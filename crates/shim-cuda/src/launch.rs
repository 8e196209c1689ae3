//! Launches of kernels and host functions.

pub(crate) mod backpressure;
pub(crate) mod clusters;
pub(crate) mod legacy;
pub(crate) mod occupancy;
pub(crate) mod submit;
pub(crate) mod upcall;

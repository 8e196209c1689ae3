//! Launches of kernels and host functions.

pub(crate) mod backpressure;
pub(crate) mod clusters;
pub(crate) mod legacy;
pub(crate) mod occupancy;
pub(crate) mod registry;
pub(crate) mod stream_queues;
pub(crate) mod submit;
pub(crate) mod target;
pub(crate) mod upcall;

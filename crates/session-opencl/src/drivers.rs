//! The OpenCL drivers of this machine: where they lie, how they are opened, and their devices.

pub(crate) mod call;
pub(crate) mod devices;
pub mod driver;
pub(crate) mod find;
pub(crate) mod query;

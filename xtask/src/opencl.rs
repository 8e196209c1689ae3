//! Programs that use OpenCL, and tools that measure them.

pub(crate) mod build;
pub(crate) mod rates;
pub(crate) mod third_party;

//! Programs that use OpenCL, and what measures them.

pub(crate) mod build;
pub(crate) mod rates;
pub(crate) mod third_party;

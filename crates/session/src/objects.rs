//! Tables from the program's ids to the driver's handles.

pub(crate) mod arrays;
pub(crate) mod green_ctx;
pub(crate) mod handles;
pub(crate) mod references;
pub(crate) mod resolve;
pub(crate) mod tables;

//! What the process has once: the link to its server, upcalls, host memory that both sides see.

pub(crate) mod host;
pub(crate) mod link;
pub(crate) mod shim;
pub(crate) mod upcall;

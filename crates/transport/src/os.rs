//! Sockets and descriptors.

pub(crate) mod descriptor;
pub(crate) mod fdpass;
pub(crate) mod socket;
pub(crate) mod vsock;

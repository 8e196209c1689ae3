//! Resources behind descriptors that CRIU saves only in part. They are read while the processes are stopped, and completed while
//! the restored processes are.

pub(crate) mod datagrams;
pub(crate) mod leases;
pub(crate) mod peers;
pub(crate) mod remote;
pub(crate) mod watches;

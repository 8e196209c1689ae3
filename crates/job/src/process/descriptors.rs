//! What processes have open of which CRIU keeps a part: read while they are stopped, and made whole while the restored ones do.

pub(crate) mod datagrams;
pub(crate) mod leases;
pub(crate) mod peers;
pub(crate) mod remote;
pub(crate) mod watches;

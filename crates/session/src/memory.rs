//! Memory of a session: device memory, pinned memory, virtual memory, and memory shared with other sessions.

pub(crate) mod address;
pub(crate) mod address_check;
pub(crate) mod charges;
pub(crate) mod chunks;
pub(crate) mod device_block;
pub mod device_memory;
pub(crate) mod holdings;
pub(crate) mod host_memory;
pub(crate) mod large_pages;
pub(crate) mod pinned_alloc;
pub(crate) mod reclaim;
pub(crate) mod shares;
pub(crate) mod stand_in;
pub(crate) mod virtual_memory;

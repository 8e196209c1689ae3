//! Memory: of devices, pinned, managed, virtual, and in pools.

pub(crate) mod allocation;
pub(crate) mod block;
pub(crate) mod counts;
pub(crate) mod device_backing;
pub(crate) mod host;
pub(crate) mod host_backing;
pub(crate) mod idle;
pub(crate) mod ipc;
pub(crate) mod managed;
pub(crate) mod pinned;
pub(crate) mod pinned_sync;
pub(crate) mod pointer;
pub(crate) mod pool;
pub(crate) mod prefetch;
pub(crate) mod registered;
pub(crate) mod registration;
pub(crate) mod share;
pub(crate) mod system_atomics;
pub(crate) mod virtual_memory;

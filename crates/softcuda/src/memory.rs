//! Memory: pages, address space, allocations, pools, and memory of other processes.

pub(crate) mod allocation;
pub(crate) mod device_heap;
pub(crate) mod device_memory;
pub(crate) mod heap;
pub(crate) mod host;
pub(crate) mod ipc;
pub(crate) mod ipc_event_counters;
pub(crate) mod managed;
pub(crate) mod pages;
pub(crate) mod peer_processes;
pub(crate) mod physical;
pub(crate) mod physical_file;
pub(crate) mod pointer;
pub(crate) mod pool;
pub(crate) mod space;
pub(crate) mod virtual_memory;

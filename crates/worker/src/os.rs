//! What the process sets up with the system: its limits, its address layout, its sandbox, its log.

pub(crate) mod exit;
pub(crate) mod host_memory;
pub(crate) mod layout;
pub(crate) mod log;
mod memory_files;
pub(crate) mod process;
pub(crate) mod sandbox;

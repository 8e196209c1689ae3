//! State of a job's processes, as the kernel shows it.

pub(crate) mod attributes;
pub(crate) mod descriptors;
pub(crate) mod file_id;
pub mod inherited_fds;
pub(crate) mod injection;
pub(crate) mod libraries;
pub(crate) mod losses;
pub(crate) mod memory;
pub(crate) mod own_settings;
pub mod shared_memory;
pub mod signals;
pub mod stdio;
pub mod stopped;
pub(crate) mod tcp;
pub(crate) mod terminals;
pub mod tree;
pub(crate) mod unix_session;
pub(crate) mod unknown_sessions;
pub mod written_files;

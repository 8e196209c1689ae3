//! The process, its settings, its devices, and Katydid's interface beyond CUDA.

pub(crate) mod attributes;
pub(crate) mod checkpoint_api;
pub(crate) mod device;
pub(crate) mod facts;
pub(crate) mod handles;
pub(crate) mod init;
pub(crate) mod proc_address;
pub(crate) mod settings;
pub(crate) mod state;

//! What users write: flags, the config file, durations, sizes, variables.

pub(crate) mod command;
pub(crate) mod config;
pub(crate) mod duration;
pub(crate) mod flags;
pub(crate) mod mistake;
pub(crate) mod periodic;
pub(crate) mod size;
pub(crate) mod variables;

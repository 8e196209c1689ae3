//! What users write: the config file, durations, sizes.

pub mod config;
pub mod duration;
pub mod size;

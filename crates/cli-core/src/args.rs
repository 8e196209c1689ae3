//! Input of users: the config file, other files, durations, sizes.

pub mod config;
pub mod duration;
pub mod file;
pub mod size;

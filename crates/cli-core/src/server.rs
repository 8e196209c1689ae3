//! Servers: their addresses, their admin sockets, and the surroundings of their workers.

pub mod address;
pub mod admin;
pub mod isolation;
pub mod module_cache;
pub mod mps;
pub mod private_server;
pub mod start;
pub mod worker_env;
pub mod worker_user;

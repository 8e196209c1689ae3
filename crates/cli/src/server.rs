//! Servers: where they are, how they are asked, what surrounds the workers of one.

pub(crate) mod address;
pub(crate) mod admin;
pub(crate) mod isolation;
pub(crate) mod module_cache;
pub(crate) mod mps;
pub(crate) mod private_server;
pub(crate) mod start;
pub(crate) mod worker_env;
pub(crate) mod worker_user;

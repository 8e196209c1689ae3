//! Messages and frames between program and worker.

pub mod facts;
pub mod frame;
pub mod handshake;

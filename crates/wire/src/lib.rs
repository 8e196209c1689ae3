//! Messages and frames between program and worker.

pub mod facts;

//! The session of this process, its errors, and its answers to tools.

pub(crate) mod checkpoint;
pub(crate) mod coredump;
pub(crate) mod environment;
pub(crate) mod error;
pub(crate) mod error_log;
pub(crate) mod profiler;
pub(crate) mod session;
pub(crate) mod start;
pub(crate) mod tracing;

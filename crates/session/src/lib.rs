//! One program state in the worker: handles and dispatch.

pub mod chunks;
pub mod output;
pub mod upcalls;
pub mod uploads;

//! Contexts, their devices, and which context each thread is in.

pub(crate) mod capability;
pub(crate) mod context_event;
pub(crate) mod contexts;
pub(crate) mod device;
pub(crate) mod execution;
pub(crate) mod green;
pub(crate) mod stack;

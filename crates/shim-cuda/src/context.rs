//! Contexts, their devices, and which context each thread is in.

pub(crate) mod capability;
pub(crate) mod completion;
pub(crate) mod context_event;
pub(crate) mod contexts;
pub(crate) mod device;
pub(crate) mod ending;
pub(crate) mod execution;
pub(crate) mod green_ctx;
pub(crate) mod primary;
pub(crate) mod record;
pub(crate) mod request;
pub(crate) mod stack;
pub(crate) mod synchronize;

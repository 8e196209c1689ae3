//! Contexts, and the current context of each thread.

pub(crate) mod contexts;
pub(crate) mod green_ctx;
pub(crate) mod limits;
pub(crate) mod primary;
pub(crate) mod stack;
pub(crate) mod state;
pub(crate) mod teardown;

//! Worker processes: how they start, as which user, what they report, and how they end.

pub(crate) mod control_group;
pub(crate) mod handle;
pub(crate) mod host_memory;
pub(crate) mod output;
pub(crate) mod spawn;
mod start_progress;
pub(crate) mod supervisor;
pub(crate) mod users;

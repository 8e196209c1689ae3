//! How calls run: on the main loop or on executors, with a busy poll before a wait, and brought to rest for a checkpoint.

pub(crate) mod busy_poll;
pub(crate) mod context;
pub(crate) mod dispatch;
pub(crate) mod executor;
pub(crate) mod fault;
pub(crate) mod quiesce;
pub(crate) mod relay;
pub(crate) mod serve;
pub(crate) mod session_shared;
pub(crate) mod upcalls;

//! Runs calls on the main loop or on executors: polling before waits, and callbacks of drivers.

pub(crate) mod arguments;
pub(crate) mod busy_poll;
pub(crate) mod callbacks;
pub(crate) mod dispatch;
pub(crate) mod event_poller;
pub(crate) mod executor;
pub(crate) mod fault;
pub(crate) mod marker;
pub(crate) mod notify;
pub(crate) mod pending_reads;
pub(crate) mod quiesce;
pub(crate) mod serve;
pub(crate) mod session_shared;
pub(crate) mod upcalls;

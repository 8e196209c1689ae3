//! Execution of a program's frames: on the main loop or on executors, with a busy poll before a wait; and the replies.

pub(crate) mod api;
pub(crate) mod busy_poll;
pub(crate) mod error;
pub(crate) mod executor;
pub(crate) mod in_flight;
pub(crate) mod main_loop;
pub(crate) mod replies;
pub(crate) mod upcalls;
pub(crate) mod usage;

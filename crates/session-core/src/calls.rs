//! How the frames of a program run: on the main loop or by executors, with waits polled first; and how they are answered.

pub(crate) mod api;
pub(crate) mod busy_poll;
pub(crate) mod error;
pub(crate) mod executor;
pub(crate) mod in_flight;
pub(crate) mod main_loop;
pub(crate) mod replies;
pub(crate) mod upcalls;
pub(crate) mod usage;

//! The link over a connected socket, TCP or unix: frames one way, replies the other.
//!
//! A frame is written whole, under one lock, when it is queued, so nothing lingers. The first waiting thread reads replies for
//! all. It hands the others theirs, and passes the task on when it has its own.

pub(crate) mod bulk;
pub(crate) mod bulk_connections;
pub(crate) mod frame_reader;
pub(crate) mod joined_connections;
pub(crate) mod program;
pub(crate) mod reply_dispatcher;
pub(crate) mod worker;

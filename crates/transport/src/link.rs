//! What both sides of a link share, and how a link begins, pauses and resumes.

pub(crate) mod address;
pub(crate) mod batch;
pub mod compression;
pub(crate) mod connect;
pub(crate) mod error;
pub(crate) mod gate;
pub(crate) mod greeting;
pub(crate) mod link_control;
pub(crate) mod open;
pub(crate) mod pending;
pub(crate) mod program;
pub(crate) mod reconnect;
pub(crate) mod reply_buffer;
pub(crate) mod thread_ids;
pub(crate) mod worker;

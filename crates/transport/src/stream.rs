//! The link over a connected socket, TCP or unix: frames one way, replies the other.
//!
//! A frame is written whole, under one lock, when it is queued, so nothing lingers. Replies are read by whichever
//! waiting thread comes first; it hands the others theirs, and the task on when it has its own.

mod joined;
mod lanes;
mod program;
mod worker;

pub(crate) use joined::Joined;
pub(crate) use program::StreamProgram;
pub(crate) use worker::StreamWorker;

//! The link through shared memory: frames in a ring, each thread's replies in a place of its own.

mod program;
mod worker;

pub(crate) use program::ShmProgram;
pub(crate) use worker::{ShmWorker, answer_head};

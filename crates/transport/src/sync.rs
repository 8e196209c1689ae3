//! Waiting and locking.

pub(crate) mod barrier;
pub(crate) mod biased_lock;
pub(crate) mod contention;
pub(crate) mod wait;

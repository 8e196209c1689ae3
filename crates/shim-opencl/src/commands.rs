//! The commands that programs enqueue, and the message for each.

pub(crate) mod command;
pub(crate) mod launch;
pub(crate) mod map;
pub(crate) mod map_in_place;
pub(crate) mod svm;
pub(crate) mod transfer;

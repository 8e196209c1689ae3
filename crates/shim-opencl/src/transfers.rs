//! Transfers between program and worker: in frames, in staged pieces, in shared blocks, or in place.

pub(crate) mod blocks;
pub(crate) mod images_in_place;
pub(crate) mod in_place;
pub(crate) mod send;
pub(crate) mod staged_copy;
pub(crate) mod transfer;
pub(crate) mod zero_copy;

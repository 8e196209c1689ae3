//! Bytes between the program and the worker: in frames, in staged pieces, in shared blocks, or left where they are.

pub(crate) mod blocks;
pub(crate) mod bulk;
pub(crate) mod in_place;
pub(crate) mod pending_reads;
pub(crate) mod pieces;
pub(crate) mod rows;
pub(crate) mod zero_copy;

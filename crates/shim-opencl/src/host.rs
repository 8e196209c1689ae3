//! The program's side of memory: pages shared with the worker, and data on its way to the program's targets.

pub(crate) mod arena;
pub(crate) mod bulk;
pub(crate) mod contents;
pub(crate) mod mapped_pages;
pub(crate) mod pending_reads;
pub(crate) mod rows;
pub(crate) mod transfer_blocks;

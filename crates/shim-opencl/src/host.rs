//! The program's side of memory: pages that the worker shares, and bytes on their way to places that the program named.

pub(crate) mod arena;
pub(crate) mod bulk;
pub(crate) mod contents;
pub(crate) mod mapped_pages;
pub(crate) mod pending_reads;
pub(crate) mod rows;
pub(crate) mod transfer_blocks;

//! The edge to C callers: the exported symbols, what each of them passes, and what is refused.

pub(crate) mod arguments;
pub(crate) mod export_table;
pub(crate) mod guard;
pub(crate) mod handle;
pub(crate) mod proc_address;
pub(crate) mod symbols;

// What the generated symbols call.
pub(crate) use crate::process::tracing::Detail;
pub(crate) use crate::sync::stream::with_per_thread_default;
pub(crate) use handle::wire;
#[allow(unused_imports, reason = "which of them are called depends on the lines of the spec")]
pub(crate) use {
    crate::context::request::{call, enqueue},
    arguments::out,
    guard::{detailed, entry, refused},
};

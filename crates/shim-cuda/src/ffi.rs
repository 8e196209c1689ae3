//! The FFI edge: the exported symbols, the checks that each of them passes, and refused functions.

pub(crate) mod arguments;
pub(crate) mod export_table;
pub(crate) mod exported_call;
pub(crate) mod handle;
pub(crate) mod objects;
pub(crate) mod proc_address;
#[cfg(test)]
mod releases;
pub(crate) mod symbols;

// Used by the generated symbols.
pub(crate) use crate::process::tracing::CallDetail;
pub(crate) use crate::sync::stream::with_per_thread_default;
#[allow(unused_imports, reason = "which of them are called depends on the lines of the spec")]
pub(crate) use {
    crate::context::device::position,
    crate::context::request::{any_context, call, call_in, enqueue, enqueue_in, structure},
    arguments::out,
    exported_call::{detailed, entry, refused},
    handle::{owning_context, wire},
};

//! Live contexts, by handle.
//!
//! A green context is another name of its device's primary context: calls find that context by it.

use std::sync::Arc;

use crate::context::state::Context;
use crate::ffi::Outcome;
use crate::process::device::Device;
use crate::process::handles::{Registry, new_handle};
use crate::sync::stream::LiveContext;

/// Live contexts: those of `cuCtxCreate`, and active primary ones.
static CONTEXTS: Registry<LiveContext> = Registry::new();
/// Handles of primary contexts, by their further handles.
static OTHER_NAMES: Registry<usize> = Registry::new();

/// Returns the live context behind a handle.
pub(crate) fn living(handle: usize) -> Option<Arc<LiveContext>> {
    CONTEXTS.get(handle).or_else(|| CONTEXTS.get(*OTHER_NAMES.get(handle)?))
}

/// `cuCtxCreate`, without making it current.
pub(crate) fn create(device: &'static Device, flags: u32, api_version: u32) -> Outcome<Arc<LiveContext>> {
    create_as(new_handle(), device, flags, api_version)
}

/// Creates a context under `handle`, alive until [`end`].
pub(crate) fn create_as(
    handle: usize,
    device: &'static Device,
    flags: u32,
    api_version: u32,
) -> Outcome<Arc<LiveContext>> {
    let context = LiveContext::new(Context::new(handle, device, flags, api_version)?);
    CONTEXTS.insert(handle, Arc::clone(&context));
    Ok(context)
}

/// Removes the context, so that no call finds it any more.
pub(crate) fn end(handle: usize) {
    CONTEXTS.remove(handle);
}

/// Adds a further handle of a primary context.
pub(crate) fn add_name(name: usize, primary: usize) {
    OTHER_NAMES.insert(name, Arc::new(primary));
}

/// Removes a further handle.
pub(crate) fn remove_name(name: usize) {
    OTHER_NAMES.remove(name);
}

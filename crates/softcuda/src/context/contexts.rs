//! Contexts that live, by handle.
//!
//! A green context is another name of the primary context of its device, under which calls find that one.

use std::sync::Arc;

use crate::context::state::Context;
use crate::ffi::Outcome;
use crate::process::device::Device;
use crate::process::handles::{Registry, new_handle};
use crate::sync::stream::LiveContext;

/// Contexts that live: those of `cuCtxCreate`, and active primary ones.
static CONTEXTS: Registry<LiveContext> = Registry::new();
/// Handles of primary contexts, by their other handles.
static OTHER_NAMES: Registry<usize> = Registry::new();

/// The living context behind a handle.
pub(crate) fn living(handle: usize) -> Option<Arc<LiveContext>> {
    CONTEXTS.get(handle).or_else(|| CONTEXTS.get(*OTHER_NAMES.get(handle)?))
}

/// `cuCtxCreate`, without making it current.
pub(crate) fn create(device: &'static Device, flags: u32, api_version: u32) -> Outcome<Arc<LiveContext>> {
    create_as(new_handle(), device, flags, api_version)
}

/// A context under `handle`, alive until [`end`].
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

/// Has no call find the context any more.
pub(crate) fn end(handle: usize) {
    CONTEXTS.remove(handle);
}

/// Has calls find a primary context by another handle as well.
pub(crate) fn add_name(name: usize, primary: usize) {
    OTHER_NAMES.insert(name, Arc::new(primary));
}

/// Ends such a name.
pub(crate) fn remove_name(name: usize) {
    OTHER_NAMES.remove(name);
}

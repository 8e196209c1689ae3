//! Values that control conditional nodes. Kernels set them while their graph runs.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The value that controls a conditional node.
pub(super) struct Condition {
    value: AtomicU32,
    /// Initial value of each launch of the graph, if it has one.
    default: Option<u32>,
}

impl Condition {
    pub(super) fn get(&self) -> u32 {
        self.value.load(Ordering::Acquire)
    }

    /// Sets the default value as a launch begins.
    pub(super) fn begin(&self) {
        if let Some(value) = self.default {
            self.value.store(value, Ordering::Release);
        }
    }
}

/// All values, by handle.
type Conditions = Option<HashMap<u64, Arc<Condition>>>;

fn conditions() -> MutexGuard<'static, Conditions> {
    static CONDITIONS: Mutex<Conditions> = Mutex::new(None);
    CONDITIONS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Creates a value. As on a GPU, handles are small numbers in order of creation.
pub(super) fn create(default: Option<u32>) -> u64 {
    static LAST_CONDITION_HANDLE: AtomicU64 = AtomicU64::new(0);
    let handle = LAST_CONDITION_HANDLE.fetch_add(1, Ordering::Relaxed) + 1;
    let value = AtomicU32::new(default.unwrap_or(0));
    conditions().get_or_insert_default().insert(handle, Arc::new(Condition { value, default }));
    handle
}

/// The value behind a handle.
pub(super) fn find(handle: u64) -> Option<Arc<Condition>> {
    conditions().as_ref()?.get(&handle).cloned()
}

/// Removes the value of a graph that is gone.
pub(super) fn forget(handle: u64) {
    if let Some(conditions) = conditions().as_mut() {
        conditions.remove(&handle);
    }
}

/// `cudaGraphSetConditional` of device code. Ignores an unknown handle.
pub(crate) fn set(handle: u64, value: u32) {
    if let Some(condition) = find(handle) {
        condition.value.store(value, Ordering::Release);
    }
}

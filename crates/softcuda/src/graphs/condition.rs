//! Values that conditional nodes go by. Kernels set them while their graph runs.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The value that a conditional node goes by.
pub(super) struct Condition {
    value: AtomicU32,
    /// What each launch of the graph begins with, if that was said.
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

/// A new value; handles are small numbers in the order they were made, as on a GPU.
pub(super) fn create(default: Option<u32>) -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let handle = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    let value = AtomicU32::new(default.unwrap_or(0));
    conditions().get_or_insert_default().insert(handle, Arc::new(Condition { value, default }));
    handle
}

/// The value behind a handle.
pub(super) fn find(handle: u64) -> Option<Arc<Condition>> {
    conditions().as_ref()?.get(&handle).cloned()
}

/// Its graph is gone.
pub(super) fn forget(handle: u64) {
    if let Some(conditions) = conditions().as_mut() {
        conditions.remove(&handle);
    }
}

/// `cudaGraphSetConditional` of device code; a handle that is none is left alone.
pub(crate) fn set(handle: u64, value: u32) {
    if let Some(condition) = find(handle) {
        condition.value.store(value, Ordering::Release);
    }
}

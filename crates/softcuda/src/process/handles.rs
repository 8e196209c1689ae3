//! Handles: numbers that stand for objects, checked at every use.
//!
//! A handle is never a pointer of the library, and never reused in the process. So garbage, a handle of another kind, and the
//! handle of a destroyed object are all the same: not in the registry.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// Above the special stream handles and below every address. Steps leave room for numbers derived from a handle.
const FIRST_OBJECT_HANDLE: usize = 0x10_0000;
/// Distance between two handles, in bytes.
const HANDLE_STEP_BYTES: usize = 16;

/// Returns a new handle, different from all others of the process.
pub(crate) fn new_handle() -> usize {
    static NEXT_HANDLE: AtomicUsize = AtomicUsize::new(FIRST_OBJECT_HANDLE);
    NEXT_HANDLE.fetch_add(HANDLE_STEP_BYTES, Ordering::Relaxed)
}

/// The live objects of one kind.
pub(crate) struct Registry<T> {
    objects: RwLock<Option<HashMap<usize, Arc<T>>>>,
}

impl<T> Registry<T> {
    /// Returns an empty registry, at compile time.
    pub(crate) const fn new() -> Self {
        Self { objects: RwLock::new(None) }
    }

    /// Registers `object` under `handle`.
    pub(crate) fn insert(&self, handle: usize, object: Arc<T>) {
        self.objects.write().unwrap_or_else(PoisonError::into_inner).get_or_insert_default().insert(handle, object);
    }

    /// Returns the object behind `handle`, if it lives.
    pub(crate) fn get(&self, handle: usize) -> Option<Arc<T>> {
        self.objects.read().unwrap_or_else(PoisonError::into_inner).as_ref()?.get(&handle).cloned()
    }

    /// Removes `handle`. The object lives on while a caller works with it.
    pub(crate) fn remove(&self, handle: usize) -> Option<Arc<T>> {
        self.objects.write().unwrap_or_else(PoisonError::into_inner).as_mut()?.remove(&handle)
    }

    /// Removes all handles for whose object `which` is true, and returns the objects.
    pub(crate) fn remove_if(&self, which: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        let mut objects = self.objects.write().unwrap_or_else(PoisonError::into_inner);
        let Some(objects) = objects.as_mut() else { return Vec::new() };
        objects.extract_if(|_, object| which(object)).map(|(_, object)| object).collect()
    }

    /// Returns all live objects.
    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        let objects = self.objects.read().unwrap_or_else(PoisonError::into_inner);
        objects.as_ref().map(|all| all.values().cloned().collect()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removed_handle_and_a_foreign_one_are_equally_unknown() {
        let registry = Registry::new();
        let (first, second) = (new_handle(), new_handle());
        assert_ne!(first, second);
        registry.insert(first, Arc::new(7));
        assert_eq!(registry.get(first).as_deref(), Some(&7));
        assert_eq!(registry.get(second), None);
        assert_eq!(registry.remove(first).as_deref(), Some(&7));
        assert_eq!(registry.get(first), None);
    }

    #[test]
    fn objects_are_removed_by_what_they_are() {
        let registry = Registry::new();
        (1..=4).for_each(|number| registry.insert(new_handle(), Arc::new(number)));
        assert_eq!(registry.remove_if(|number| number % 2 == 0).len(), 2);
        assert_eq!(registry.all().iter().map(|number| **number).sum::<i32>(), 4);
    }
}

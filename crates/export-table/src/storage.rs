//! Context-local storage: values that a library stores with a context, by its own key, with a destructor.
//!
//! Nearly every runtime call reads it, so readers share a lock and search one small list. Destructors run without a lock:
//! they call back into the driver.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

use crate::facts::Handle;
use crate::ffi::{Status, status};

/// Called with (context, key, value) when the context ends.
pub(crate) type Destructor = unsafe extern "C" fn(Handle, usize, usize);

struct StoredValue {
    key: usize,
    value: usize,
    destructor: Option<Destructor>,
}

/// The values of all contexts, oldest first in each.
#[derive(Default)]
pub(crate) struct Storage {
    contexts: RwLock<Option<HashMap<Handle, Vec<StoredValue>>>>,
}

/// The storage of this process.
pub(crate) static CONTEXT_STORAGE: Storage = Storage { contexts: RwLock::new(None) };

impl Storage {
    /// Stores `value`; an existing key keeps its old value and gives `INVALID_HANDLE`.
    pub(crate) fn put(
        &self,
        context: Handle,
        key: usize,
        value: usize,
        destructor: Option<Destructor>,
    ) -> Result<(), Status> {
        let mut contexts = self.contexts.write().unwrap_or_else(PoisonError::into_inner);
        let entries = contexts.get_or_insert_default().entry(context).or_default();
        if entries.iter().any(|entry| entry.key == key) {
            return Err(status::INVALID_HANDLE);
        }
        entries.push(StoredValue { key, value, destructor });
        Ok(())
    }

    /// Removes a value without running its destructor.
    pub(crate) fn delete(&self, context: Handle, key: usize) -> Result<(), Status> {
        let mut contexts = self.contexts.write().unwrap_or_else(PoisonError::into_inner);
        let entries = contexts.get_or_insert_default().get_mut(&context).ok_or(status::INVALID_HANDLE)?;
        let at = entries.iter().position(|entry| entry.key == key).ok_or(status::INVALID_HANDLE)?;
        entries.remove(at);
        Ok(())
    }

    /// Returns the value stored under `key`.
    pub(crate) fn get(&self, context: Handle, key: usize) -> Result<usize, Status> {
        let contexts = self.contexts.read().unwrap_or_else(PoisonError::into_inner);
        let entries = contexts.as_ref().and_then(|all| all.get(&context)).ok_or(status::INVALID_HANDLE)?;
        entries.iter().find(|entry| entry.key == key).map(|entry| entry.value).ok_or(status::INVALID_HANDLE)
    }

    /// Removes and returns the newest entry of a context.
    fn pop(&self, context: Handle) -> Option<StoredValue> {
        let mut contexts = self.contexts.write().unwrap_or_else(PoisonError::into_inner);
        let values = contexts.as_mut()?;
        let entry = values.get_mut(&context)?.pop();
        if entry.is_none() {
            values.remove(&context);
        }
        entry
    }

    /// Empties a context, newest entry first. Entries that a destructor adds are removed as well.
    fn clear(&self, context: Handle) {
        while let Some(entry) = self.pop(context) {
            if let Some(destructor) = entry.destructor {
                #[expect(unsafe_code, reason = "calls the destructor of a C caller")]
                // SAFETY: the caller that stored the entry passed this function for exactly these arguments.
                unsafe {
                    destructor(context, entry.key, entry.value)
                };
            }
        }
    }
}

/// Runs the destructors of all values stored with `context`. The embedding library must call this when a context is
/// destroyed, at the last release of a primary context and at its reset, without holding a lock.
pub fn context_gone(context: Handle) {
    CONTEXT_STORAGE.clear(context);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    static DESTROYED: Mutex<Vec<(Handle, usize, usize)>> = Mutex::new(Vec::new());

    extern "C" fn note(context: Handle, key: usize, value: usize) {
        DESTROYED.lock().unwrap().push((context, key, value));
    }

    #[test]
    fn a_key_can_be_put_once_and_found_until_deleted() {
        let storage = Storage::default();
        assert_eq!(storage.put(1, 10, 100, None), Ok(()));
        assert_eq!(storage.put(1, 10, 101, None), Err(status::INVALID_HANDLE));
        assert_eq!(storage.get(1, 10), Ok(100));
        assert_eq!(storage.get(2, 10), Err(status::INVALID_HANDLE));
        assert_eq!(storage.delete(1, 10), Ok(()));
        assert_eq!(storage.delete(1, 10), Err(status::INVALID_HANDLE));
        assert_eq!(storage.get(1, 10), Err(status::INVALID_HANDLE));
    }

    #[test]
    fn destructors_run_newest_first_and_not_for_what_was_deleted() {
        let storage = Storage::default();
        for key in 1..=3 {
            storage.put(7, key, key * 10, Some(note)).unwrap();
        }
        storage.put(8, 1, 1, Some(note)).unwrap();
        storage.delete(7, 2).unwrap();
        storage.clear(7);
        assert_eq!(*DESTROYED.lock().unwrap(), [(7, 3, 30), (7, 1, 10)]);
        assert_eq!(storage.get(7, 1), Err(status::INVALID_HANDLE));
        assert_eq!(storage.get(8, 1), Ok(1));
    }
}

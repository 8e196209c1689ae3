//! Mutexes whose users leave the value whole.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks `mutex`; a panic of an earlier holder does not matter.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

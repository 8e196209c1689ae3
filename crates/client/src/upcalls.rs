//! Functions of the program that run when the worker calls them: the registered ones, by token, and the thread that runs them.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::{life, threads};

/// Stack of the thread in bytes: the program's functions expect the usual size.
const STACK_BYTES: usize = 8 << 20;

/// Registered functions that have not run yet, and the one thread that runs them.
#[derive(Debug)]
pub struct Registry<F> {
    state: Mutex<UpcallState<F>>,
    /// Whether the thread could be started; unset before the first registration.
    thread: OnceLock<bool>,
}

#[derive(Debug)]
struct UpcallState<F> {
    last_token: u64,
    functions: HashMap<u64, F>,
}

impl<F> Default for Registry<F> {
    fn default() -> Self {
        let state = UpcallState { last_token: 0, functions: HashMap::new() };
        Self { state: Mutex::new(state), thread: OnceLock::new() }
    }
}

impl<F> Registry<F> {
    fn lock(&self) -> MutexGuard<'_, UpcallState<F>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a new token, which is never 0.
    pub fn new_token(&self) -> u64 {
        let mut state = self.lock();
        state.last_token += 1;
        state.last_token
    }

    /// Registers a function under a new token.
    pub fn add(&self, function: F) -> u64 {
        let mut state = self.lock();
        state.last_token += 1;
        let token = state.last_token;
        state.functions.insert(token, function);
        token
    }

    /// Registers a function under a token from [`Registry::new_token`].
    pub fn insert(&self, token: u64, function: F) {
        self.lock().functions.insert(token, function);
    }

    /// Returns the function of a token, and ends its registration.
    pub fn take(&self, token: u64) -> Option<F> {
        self.lock().functions.remove(&token)
    }

    /// Returns the copy that `copy` makes of a token's function. If it makes none, returns the function itself, and ends its
    /// registration.
    pub fn copy_or_take(&self, token: u64, copy: impl FnOnce(&F) -> Option<F>) -> Option<F> {
        let mut state = self.lock();
        match state.functions.get(&token).and_then(copy) {
            Some(copied) => Some(copied),
            None => state.functions.remove(&token),
        }
    }

    /// Ends the registration of functions that are `over`. Returns their tokens.
    pub fn remove_if(&self, mut over: impl FnMut(&F) -> bool) -> Vec<u64> {
        let mut state = self.lock();
        // The functions are dropped outside of the lock: dropping one may register others.
        let removed: Vec<(u64, F)> = state.functions.extract_if(|_, function| over(function)).collect();
        drop(state);
        removed.into_iter().map(|(token, _)| token).collect()
    }

    /// Starts the thread, unless it runs already; false if the system has none, or this is a child that shares its parent's memory:
    /// the thread would end with the child. It takes no signals, and ends when `serve` returns.
    pub fn run_thread(&self, serve: fn()) -> bool {
        if self.thread.get().is_none() && !life::is_of_this_process() {
            return false;
        }
        *self.thread.get_or_init(|| threads::start("katydid-upcall", STACK_BYTES, serve).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_is_taken_once_unless_it_may_be_copied() {
        let registry = Registry::default();
        let token = registry.add("function");
        assert_eq!((token, registry.take(token + 1)), (1, None));
        assert_eq!(registry.copy_or_take(token, |function| Some(*function)), Some("function"));
        assert_eq!(registry.copy_or_take(token, |_| None), Some("function"));
        assert_eq!(registry.take(token), None);
    }

    #[test]
    fn functions_that_are_over_are_removed() {
        let registry = Registry::default();
        let tokens = [1, 2, 1].map(|context| registry.add(context));
        let mut removed = registry.remove_if(|context| *context == 1);
        removed.sort_unstable();
        assert_eq!((removed, registry.take(tokens[1])), (vec![tokens[0], tokens[2]], Some(2)));
    }
}

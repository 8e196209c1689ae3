//! Limits of a context (`cuCtxSetLimit`): kept and reported. The interpreter needs none of them, so that a program that
//! raises one gets what it asked for.

use std::sync::{Mutex, PoisonError};

use katydid_cuda_sys::{CUresult, limit};

use crate::border::Outcome;

/// Values by limit id, in bytes or counts, starting as the real driver has them.
pub(crate) struct Limits(Mutex<[u64; COUNT]>);

/// Ids below this have a value; up to [`KNOWN`] they are known, but not of this device.
const COUNT: usize = 7;
/// Ids from here on are those of newer drivers.
const KNOWN: u32 = 10;

impl Limits {
    /// The values of a fresh context of the real driver.
    pub(crate) fn new() -> Self {
        let mut values = [0; COUNT];
        values[limit::STACK_SIZE as usize] = 1024;
        values[limit::PRINTF_FIFO_SIZE as usize] = 1 << 20;
        values[limit::MALLOC_HEAP_SIZE as usize] = 8 << 20;
        values[limit::DEV_RUNTIME_SYNC_DEPTH as usize] = 2;
        values[limit::DEV_RUNTIME_PENDING_LAUNCH_COUNT as usize] = 2048;
        values[limit::MAX_L2_FETCH_GRANULARITY as usize] = 128;
        Self(Mutex::new(values))
    }

    /// The value of a limit.
    pub(crate) fn get(&self, id: u32) -> Outcome<u64> {
        Ok(self.0.lock().unwrap_or_else(PoisonError::into_inner)[index(id)?])
    }

    /// Changes a limit. There is no persisting cache: its size stays 0.
    pub(crate) fn set(&self, id: u32, value: u64) -> Outcome {
        let at = index(id)?;
        if id == limit::PERSISTING_L2_CACHE_SIZE {
            return Err(CUresult::ERROR_UNSUPPORTED_LIMIT);
        }
        self.0.lock().unwrap_or_else(PoisonError::into_inner)[at] = value;
        Ok(())
    }
}

/// The place of a limit, or the code that tells why it has none.
fn index(id: u32) -> Outcome<usize> {
    match id {
        id if (id as usize) < COUNT => Ok(id as usize),
        id if id < KNOWN => Err(CUresult::ERROR_UNSUPPORTED_LIMIT),
        _ => Err(CUresult::ERROR_INVALID_VALUE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_keeps_what_was_set_and_unknown_ones_are_told_apart() {
        let limits = Limits::new();
        assert_eq!(limits.set(limit::STACK_SIZE, 4096), Ok(()));
        assert_eq!(limits.get(limit::STACK_SIZE), Ok(4096));
        assert_eq!(limits.get(8), Err(CUresult::ERROR_UNSUPPORTED_LIMIT));
        assert_eq!(limits.get(99), Err(CUresult::ERROR_INVALID_VALUE));
    }
}

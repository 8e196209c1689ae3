//! Limits of a context (`cuCtxSetLimit`): rounded, kept and reported as an H100 does (driver 580.159.04, 2026-11-28). Of them
//! the interpreter needs the size of the heap of `malloc` alone.
//!
//! | limit | at first | steps | least | most |
//! |---|---|---|---|---|
//! | stack of a thread | 1024 | 16 | 0 | 512 KiB, refused beyond |
//! | buffer of `printf` | 8,650,752 | 256 | 512 KiB | 2 GiB |
//! | heap of `malloc` | 8 MiB | 64 KiB | 4 MiB | memory of the device |
//! | launches that wait | 2048 | 1 | 32 | 599,186 |
//! | granularity of L2 | 64 | 1 | 0 | 128, refused beyond |
//! | persisting L2 | 3 tenths of the most | a tenth | 0 | what the device shows, refused beyond |
//! | shared memory of a block | what the device shows | cannot be set (800) | | |
//! | graphics in the context | 0 | cannot be set (800) | | |
//!
//! How deep the device runtime waits, and what falls back in shared memory, are limits of other devices (215).

use std::sync::{Mutex, PoisonError};

use katydid_cuda_sys::{CUresult, limit};

use crate::ffi::Outcome;
use crate::process::attributes::{MAX_BLOCK_SHARED_BYTES, MAX_PERSISTING_L2_BYTES};

/// Values by limit id, in bytes or counts.
pub(crate) struct ContextLimits(Mutex<[u64; STORED_LIMITS]>);

/// Number of stored limits. Ids from here up to [`FIRST_UNKNOWN_LIMIT`] are known, but this device does not have them.
const STORED_LIMITS: usize = 9;
/// Ids from here on belong to newer drivers.
const FIRST_UNKNOWN_LIMIT: u32 = 10;

/// `CU_LIMIT_SHMEM_SIZE` and `CU_LIMIT_CIG_ENABLED`, which the driver decides.
const SHARED_SIZE: u32 = 7;
const GRAPHICS_LIMIT: u32 = 8;

/// The range of a limit.
struct LimitRule {
    /// Values are multiples of this.
    step: u64,
    min: u64,
    max: u64,
    /// Values above the maximum are refused, not clamped.
    refuses: bool,
}

/// Returns the rule of a limit.
fn rule(id: u32, memory: u64) -> LimitRule {
    let (step, min, max, refuses) = match id {
        limit::STACK_SIZE => (16, 0, 512 << 10, true),
        limit::PRINTF_FIFO_SIZE => (256, 512 << 10, 2 << 30, false),
        limit::MALLOC_HEAP_SIZE => (64 << 10, 4 << 20, memory.max(4 << 20), false),
        limit::DEV_RUNTIME_PENDING_LAUNCH_COUNT => (1, 32, 599_186, false),
        limit::MAX_L2_FETCH_GRANULARITY => (1, 0, 128, true),
        _ => (u64::from(MAX_PERSISTING_L2_BYTES / 10), 0, MAX_PERSISTING_L2_BYTES.into(), true),
    };
    LimitRule { step, min, max, refuses }
}

impl ContextLimits {
    /// Returns the initial values of the real driver.
    pub(crate) fn new() -> Self {
        let mut values = [0; STORED_LIMITS];
        values[limit::STACK_SIZE as usize] = 1024;
        values[limit::PRINTF_FIFO_SIZE as usize] = 8_650_752;
        values[limit::MALLOC_HEAP_SIZE as usize] = 8 << 20;
        values[limit::DEV_RUNTIME_PENDING_LAUNCH_COUNT as usize] = 2048;
        values[limit::MAX_L2_FETCH_GRANULARITY as usize] = 64;
        values[limit::PERSISTING_L2_CACHE_SIZE as usize] = u64::from(MAX_PERSISTING_L2_BYTES / 10 * 3);
        values[SHARED_SIZE as usize] = MAX_BLOCK_SHARED_BYTES.into();
        Self(Mutex::new(values))
    }

    /// Returns the value of a limit.
    pub(crate) fn get(&self, id: u32) -> Outcome<u64> {
        Ok(self.0.lock().unwrap_or_else(PoisonError::into_inner)[index(id)?])
    }

    /// Changes a limit of a context, on a device with `memory` bytes.
    pub(crate) fn set(&self, id: u32, value: u64, memory: u64) -> Outcome {
        let at = index(id)?;
        if matches!(id, SHARED_SIZE | GRAPHICS_LIMIT) {
            return Err(CUresult::ERROR_NOT_PERMITTED);
        }
        let LimitRule { step, min, max, refuses } = rule(id, memory);
        if refuses && value > max {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let value = value.clamp(min, max);
        let rounded = value.checked_next_multiple_of(step).unwrap_or(value).min(max);
        self.0.lock().unwrap_or_else(PoisonError::into_inner)[at] = rounded;
        Ok(())
    }
}

/// Returns the index of a limit, or the code for one that is not stored.
fn index(id: u32) -> Outcome<usize> {
    match id {
        limit::DEV_RUNTIME_SYNC_DEPTH => Err(CUresult::ERROR_UNSUPPORTED_LIMIT),
        id if (id as usize) < STORED_LIMITS => Ok(id as usize),
        id if id < FIRST_UNKNOWN_LIMIT => Err(CUresult::ERROR_UNSUPPORTED_LIMIT),
        _ => Err(CUresult::ERROR_INVALID_VALUE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the value after a set, or the code of the refusal.
    fn stored(id: u32, value: u64) -> Outcome<u64> {
        let limits = ContextLimits::new();
        limits.set(id, value, 80 << 30)?;
        limits.get(id)
    }

    #[test]
    fn values_are_rounded_as_an_h100_rounds_them() {
        assert_eq!([0, 1, 100, 4096].map(|value| stored(limit::STACK_SIZE, value)), [0, 16, 112, 4096].map(Ok));
        let printf = [1, 1_000_000, 32_768_001, 1 << 40].map(|value| stored(limit::PRINTF_FIFO_SIZE, value));
        assert_eq!(printf, [524_288, 1_000_192, 32_768_256, 2 << 30].map(Ok));
        let heap = [1, 1_000_000, 32_768_001].map(|value| stored(limit::MALLOC_HEAP_SIZE, value));
        assert_eq!(heap, [4 << 20, 4 << 20, 32_833_536].map(Ok));
        let launches = [3, 100, 1_000_000].map(|value| stored(limit::DEV_RUNTIME_PENDING_LAUNCH_COUNT, value));
        assert_eq!(launches, [32, 100, 599_186].map(Ok));
        let (max, step) = (u64::from(MAX_PERSISTING_L2_BYTES), u64::from(MAX_PERSISTING_L2_BYTES / 10));
        let cache = [0, 1, max - 1, max].map(|value| stored(limit::PERSISTING_L2_CACHE_SIZE, value));
        assert_eq!(cache, [0, step, max, max].map(Ok));
    }

    #[test]
    fn limits_that_an_h100_refuses_get_its_code() {
        let invalid = Err(CUresult::ERROR_INVALID_VALUE);
        assert_eq!(stored(limit::STACK_SIZE, 1_000_000), invalid);
        assert_eq!(
            (stored(limit::MAX_L2_FETCH_GRANULARITY, 100), stored(limit::MAX_L2_FETCH_GRANULARITY, 1000)),
            (Ok(100), invalid)
        );
        assert_eq!(
            (stored(limit::PERSISTING_L2_CACHE_SIZE, u64::from(MAX_PERSISTING_L2_BYTES) + 1), stored(99, 1)),
            (invalid, invalid)
        );
        assert_eq!(stored(limit::DEV_RUNTIME_SYNC_DEPTH, 1), Err(CUresult::ERROR_UNSUPPORTED_LIMIT));
        assert_eq!(stored(9, 1), Err(CUresult::ERROR_UNSUPPORTED_LIMIT));
        assert_eq!([SHARED_SIZE, GRAPHICS_LIMIT].map(|id| stored(id, 1)), [Err(CUresult::ERROR_NOT_PERMITTED); 2]);
        assert_eq!([SHARED_SIZE, GRAPHICS_LIMIT].map(|id| ContextLimits::new().get(id)), [Ok(232_448), Ok(0)]);
    }
}

//! Words in memory by which streams and the program signal each other, and the operations of streams on them.
//!
//! The word may lie in any memory that the device reaches, including registered host memory. Nothing notifies a waiting stream of
//! a store, so it polls: often at first, then less, but at least a thousand times a second.

#![expect(unsafe_code, reason = "reads and writes words of memory that has been looked up")]

use std::ptr::with_exposed_provenance_mut;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use katydid_cuda_sys::{CUresult, CUstreamBatchMemOpParams};
use katydid_driver_rules::stream::{Comparison, WordAccess, WordOperation};

use crate::context::state::Context;
use crate::ffi::Outcome;
use crate::memory::space::{self, Access};

/// Longest pause between two polls.
const MAX_POLL_PAUSE: Duration = Duration::from_millis(1);

/// Width of a word in bytes: 4 or 8.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Width {
    /// 32 bits, 4 bytes.
    Four,
    /// 64 bits, 8 bytes.
    Eight,
}

impl Width {
    /// Bytes of the word.
    fn bytes(self) -> u64 {
        if self == Self::Four { 4 } else { 8 }
    }
}

/// A word in device-accessible memory.
#[derive(Clone, Copy)]
pub(crate) struct MemoryWord {
    address: u64,
    width: Width,
}

impl MemoryWord {
    /// Checks a word at a multiple of its width that `context` may access.
    fn new(context: &Context, address: u64, width: Width, access: Access) -> Outcome<Self> {
        let size = width.bytes();
        let is_allowed = space::read().allows(address, size, access, context.device.ordinal, context.peers());
        if is_allowed { Ok(Self { address, width }) } else { Err(CUresult::ERROR_INVALID_VALUE) }
    }

    /// Stores after all earlier work of the stream. Fails if the memory was freed meanwhile.
    fn store(self, context: &Context, value: u64) -> Outcome {
        let _working = space::working();
        self.check(context, Access::ReadWrite)?;
        let pointer = with_exposed_provenance_mut::<u8>(self.address as usize);
        match self.width {
            // SAFETY: looked up just now, kept by `_working`, aligned by `new`; others access it atomically or race as
            // they would on a GPU.
            Width::Four => unsafe { AtomicU32::from_ptr(pointer.cast()) }.store(value as u32, Ordering::SeqCst),
            // SAFETY: as above.
            Width::Eight => unsafe { AtomicU64::from_ptr(pointer.cast()) }.store(value, Ordering::SeqCst),
        }
        Ok(())
    }

    /// Loads before all later work of the stream.
    fn load(self, context: &Context) -> Outcome<u64> {
        let _working = space::working();
        self.check(context, Access::Read)?;
        let pointer = with_exposed_provenance_mut::<u8>(self.address as usize);
        Ok(match self.width {
            // SAFETY: as in `store`.
            Width::Four => u64::from(unsafe { AtomicU32::from_ptr(pointer.cast()) }.load(Ordering::SeqCst)),
            // SAFETY: as in `store`.
            Width::Eight => unsafe { AtomicU64::from_ptr(pointer.cast()) }.load(Ordering::SeqCst),
        })
    }

    /// Checks that the word still exists and allows the access.
    fn check(self, context: &Context, access: Access) -> Outcome {
        let (device, size) = (context.device.ordinal, self.width.bytes());
        let is_allowed = space::read().still_allows(self.address, size, access, device, context.peers());
        if is_allowed { Ok(()) } else { Err(CUresult::ERROR_ILLEGAL_ADDRESS) }
    }
}

/// Compares the low bits of the width.
fn holds(comparison: Comparison, word: u64, value: u64, width: Width) -> bool {
    let (word32, value32) = (word as u32, value as u32);
    match (comparison, width) {
        (Comparison::AtLeast, Width::Four) => word32.wrapping_sub(value32) as i32 >= 0,
        (Comparison::AtLeast, Width::Eight) => word.wrapping_sub(value) as i64 >= 0,
        (Comparison::Equal, Width::Four) => word32 == value32,
        (Comparison::Equal, Width::Eight) => word == value,
        (Comparison::And, Width::Four) => word32 & value32 != 0,
        (Comparison::And, Width::Eight) => word & value != 0,
        (Comparison::Nor, Width::Four) => !(word32 | value32) != 0,
        (Comparison::Nor, Width::Eight) => !(word | value) != 0,
    }
}

/// Polls until the comparison holds, or the context gives up.
fn wait_here(context: &Context, word: MemoryWord, comparison: Comparison, value: u64) -> Outcome {
    let mut pause = Duration::from_micros(1);
    while !holds(comparison, word.load(context)?, value, word.width) && !context.gives_up() {
        std::thread::sleep(pause);
        pause = (pause * 2).min(MAX_POLL_PAUSE);
    }
    Ok(())
}

/// An operation on a word, checked.
#[derive(Clone, Copy)]
pub(crate) enum Operation {
    Write(MemoryWord, u64),
    Wait(MemoryWord, Comparison, u64),
    /// Order between operations, which streams always keep.
    Nothing,
}

impl Operation {
    /// An operation of a batch.
    pub(crate) fn of_batch(context: &Context, it: &CUstreamBatchMemOpParams) -> Outcome<Self> {
        Self::new(context, it.address, WordOperation::of_batch(it)?)
    }

    /// Refuses a word that `context` does not reach.
    pub(crate) fn new(context: &Context, address: u64, operation: Option<WordOperation>) -> Outcome<Self> {
        let Some(WordOperation { size, access, value }) = operation else { return Ok(Self::Nothing) };
        let width = if size == 4 { Width::Four } else { Width::Eight };
        match access {
            WordAccess::Wait(comparison) => {
                Ok(Self::Wait(MemoryWord::new(context, address, width, Access::Read)?, comparison, value))
            }
            WordAccess::Write => Ok(Self::Write(MemoryWord::new(context, address, width, Access::ReadWrite)?, value)),
        }
    }

    /// Executes the operation, and returns when it is done.
    pub(crate) fn perform(self, context: &Context) -> Outcome {
        match self {
            Self::Write(word, value) => word.store(context, value),
            Self::Wait(word, comparison, value) => wait_here(context, word, comparison, value),
            Self::Nothing => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_compare_as_the_header_says() {
        use Comparison::{And, AtLeast, Equal, Nor};
        let holds = |comparison, word, value| holds(comparison, word, value, Width::Four);
        assert!(holds(AtLeast, 5, 5) && holds(AtLeast, 2, u64::from(u32::MAX)) && !holds(AtLeast, 4, 5));
        assert!(holds(Equal, 7, 7) && !holds(Equal, 8, 7));
        assert!(holds(And, 6, 2) && !holds(And, 4, 2));
        assert!(holds(Nor, 1, 2) && !holds(Nor, u64::from(u32::MAX), 0));
    }
}

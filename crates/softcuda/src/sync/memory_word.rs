//! Words in memory that streams and the program signal each other with, and what streams do with them.
//!
//! The word may lie in any memory that the device reaches, registered host memory included. Nothing tells a waiting
//! stream that the program wrote, so it looks again: at once at first, then ever more seldom, a thousand times a second
//! at the least.

#![expect(unsafe_code, reason = "reads and writes words of memory that has been looked up")]

use std::ptr::with_exposed_provenance_mut;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use katydid_cuda_sys::{CUresult, CUstreamBatchMemOpParams, batch_operation as id};

use crate::context::state::Context;
use crate::ffi::Outcome;
use crate::memory::space::{self, Access};

/// `CU_STREAM_WAIT_VALUE_FLUSH`: only says how remote writes become visible.
const FLUSH: u32 = 1 << 30;
/// `CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER`, in batches: allows less order than is always kept here.
const NO_BARRIER: u32 = 1;

/// The longest pause between two looks.
const LONGEST_PAUSE: Duration = Duration::from_millis(1);

/// A word's width.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Width {
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

/// What a wait compares for.
#[derive(Clone, Copy)]
pub(crate) enum Condition {
    /// The word has come at or after the value, as a signed difference.
    AtLeast,
    Equal,
    /// They have a bit in common.
    And,
    /// There is a bit that neither has.
    Nor,
}

/// A word in device-accessible memory.
#[derive(Clone, Copy)]
pub(crate) struct Word {
    address: u64,
    width: Width,
}

impl Word {
    /// A word that `context` may access, at a multiple of its width.
    pub(crate) fn new(context: &Context, address: u64, width: Width, access: Access) -> Outcome<Self> {
        let size = width.bytes();
        let there = space::read().allows(address, size, access, context.device.ordinal, context.peers());
        let usable = there && address.is_multiple_of(size);
        if usable { Ok(Self { address, width }) } else { Err(CUresult::ERROR_INVALID_VALUE) }
    }

    /// Stores after everything the stream did before; skipped if the memory went away meanwhile.
    pub(crate) fn store(self, context: &Context, value: u64) -> Outcome {
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

    /// Loads before everything the stream does next.
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

    /// Whether the word is still there, and may still be accessed so.
    fn check(self, context: &Context, access: Access) -> Outcome {
        let (device, size) = (context.device.ordinal, self.width.bytes());
        let there = space::read().still_allows(self.address, size, access, device, context.peers());
        if there { Ok(()) } else { Err(CUresult::ERROR_ILLEGAL_ADDRESS) }
    }
}

impl Condition {
    /// The low bits choose; waiting for remote writes to be flushed is no work here.
    pub(crate) fn from_flags(flags: u32) -> Outcome<Self> {
        match flags & !FLUSH {
            0 => Ok(Self::AtLeast),
            1 => Ok(Self::Equal),
            2 => Ok(Self::And),
            3 => Ok(Self::Nor),
            _ => Err(CUresult::ERROR_INVALID_VALUE),
        }
    }

    /// Compares the low bits that the width has.
    fn holds(self, word: u64, value: u64, width: Width) -> bool {
        let (word32, value32) = (word as u32, value as u32);
        match (self, width) {
            (Self::AtLeast, Width::Four) => word32.wrapping_sub(value32) as i32 >= 0,
            (Self::AtLeast, Width::Eight) => word.wrapping_sub(value) as i64 >= 0,
            (Self::Equal, Width::Four) => word32 == value32,
            (Self::Equal, Width::Eight) => word == value,
            (Self::And, Width::Four) => word32 & value32 != 0,
            (Self::And, Width::Eight) => word & value != 0,
            (Self::Nor, Width::Four) => !(word32 | value32) != 0,
            (Self::Nor, Width::Eight) => !(word | value) != 0,
        }
    }
}

/// Looks until the condition holds, or nothing matters any more.
pub(crate) fn wait_here(context: &Context, word: Word, condition: Condition, value: u64) -> Outcome {
    let mut pause = Duration::from_micros(1);
    while !condition.holds(word.load(context)?, value, word.width) && !context.gives_up() {
        std::thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
    Ok(())
}

/// An operation of a batch, checked.
#[derive(Clone, Copy)]
pub(crate) enum Operation {
    Write(Word, u64),
    Wait(Word, Condition, u64),
    /// Order between operations, which is always kept here.
    Nothing,
}

impl Operation {
    /// Refuses words that `context` does not reach, and operations that are none.
    pub(crate) fn new(context: &Context, it: &CUstreamBatchMemOpParams) -> Outcome<Self> {
        let width = match it.operation {
            id::WAIT_VALUE_32 | id::WRITE_VALUE_32 => Width::Four,
            id::WAIT_VALUE_64 | id::WRITE_VALUE_64 => Width::Eight,
            id::FLUSH_REMOTE_WRITES | id::BARRIER => return Ok(Self::Nothing),
            _ => return Err(CUresult::ERROR_INVALID_VALUE),
        };
        let value = if width == Width::Four { it.value & u64::from(u32::MAX) } else { it.value };
        if matches!(it.operation, id::WAIT_VALUE_32 | id::WAIT_VALUE_64) {
            let word = Word::new(context, it.address, width, Access::Read)?;
            return Ok(Self::Wait(word, Condition::from_flags(it.flags)?, value));
        }
        if it.flags & !NO_BARRIER != 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        Ok(Self::Write(Word::new(context, it.address, width, Access::ReadWrite)?, value))
    }

    /// Does it, and returns when it is done.
    pub(crate) fn perform(self, context: &Context) -> Outcome {
        match self {
            Self::Write(word, value) => word.store(context, value),
            Self::Wait(word, condition, value) => wait_here(context, word, condition, value),
            Self::Nothing => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_compare_as_the_header_says() {
        let holds = |flags, word, value| Condition::from_flags(flags).unwrap().holds(word, value, Width::Four);
        assert!(holds(0, 5, 5) && holds(0, 2, u64::from(u32::MAX)) && !holds(0, 4, 5));
        assert!(holds(1, 7, 7) && !holds(1, 8, 7));
        assert!(holds(2, 6, 2) && !holds(2, 4, 2));
        assert!(holds(3, 1, 2) && !holds(3, u64::from(u32::MAX), 0));
        assert!(holds(FLUSH | 1, 7, 7));
        assert!(Condition::from_flags(9).is_err());
    }
}

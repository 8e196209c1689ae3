//! Streams and events: flags, and words in memory that streams wait for and write.
#![expect(unsafe_code, reason = "reads arrays of C callers")]

use katydid_cuda_sys::{
    CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, CUstream, CUstreamBatchMemOpParams, batch_operation as id, event_flags,
    stream_flags,
};

use crate::caller;
use crate::outcome::{INVALID_VALUE, Outcome, check};

/// `CU_EVENT_RECORD_EXTERNAL` and `CU_EVENT_WAIT_EXTERNAL`: a node in a capture. Elsewhere they have no meaning.
const EVENT_EXTERNAL: u32 = 1;
/// `CU_STREAM_WAIT_VALUE_FLUSH`, beside the comparisons in the low bits.
const WAIT_VALUE_FLUSH: u32 = 1 << 30;
/// The highest comparison: `CU_STREAM_WAIT_VALUE_NOR`.
const WAIT_VALUE_NOR: u32 = 3;
/// `CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER`, which batches allow: it relaxes an order that is always kept here.
const WRITE_VALUE_NO_MEMORY_BARRIER: u32 = 1;
/// Most operations of a batch.
const MAX_OPERATIONS: usize = 256;

/// Checks the flags of a new stream.
pub const fn check_flags(flags: u32) -> Outcome {
    check(flags & !stream_flags::NON_BLOCKING == 0)
}

/// Checks the flags of a stream in a green context, which never waits for default streams.
pub const fn check_green_flags(flags: u32) -> Outcome {
    check(flags == stream_flags::NON_BLOCKING)
}

/// Clamps a priority to the device's range: numbers grow towards the least priority.
#[inline]
pub fn priority(requested: i32, least: i32, greatest: i32) -> i32 {
    requested.min(least).max(greatest)
}

/// Refuses streams that take no batches: the legacy default stream, by any name, and invalid streams (driver 580).
pub fn check_group(stream: CUstream, is_per_thread: bool, is_made: impl FnOnce() -> bool) -> Outcome {
    check(match stream {
        _ if stream.is_null() => is_per_thread,
        _ if stream == CU_STREAM_LEGACY => false,
        _ => stream == CU_STREAM_PER_THREAD || is_made(),
    })
}

/// Refuses null: functions without an index for the wrong entry do not accept it, even where it means the thread's own
/// stream (driver 580.159.04).
pub fn check_named(stream: CUstream) -> Outcome {
    check(!stream.is_null())
}

/// Checks the flags of a new event: one for other processes has no time.
pub const fn check_event_flags(flags: u32) -> Outcome {
    const EVENT_FLAGS: u32 = event_flags::BLOCKING_SYNC | event_flags::DISABLE_TIMING | event_flags::INTERPROCESS;
    let is_timed = flags & event_flags::DISABLE_TIMING == 0;
    check(flags & !EVENT_FLAGS == 0 && !(flags & event_flags::INTERPROCESS != 0 && is_timed))
}

/// Returns whether flags of a record or of a wait request a node in a capture. Refuses unknown flags.
pub const fn is_external(flags: u32) -> Outcome<bool> {
    if flags & !EVENT_EXTERNAL == 0 { Ok(flags & EVENT_EXTERNAL != 0) } else { Err(INVALID_VALUE) }
}

/// The comparison of a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    /// The word has reached or passed the value, as a signed difference.
    AtLeast,
    /// The word equals the value.
    Equal,
    /// The word and the value have a bit in common.
    And,
    /// A bit is 0 in both the word and the value.
    Nor,
}

impl Comparison {
    /// Decodes the comparison in the low bits.
    pub const fn from_flags(flags: u32) -> Outcome<Self> {
        match flags & !WAIT_VALUE_FLUSH {
            0 => Ok(Self::AtLeast),
            1 => Ok(Self::Equal),
            2 => Ok(Self::And),
            WAIT_VALUE_NOR => Ok(Self::Nor),
            _ => Err(INVALID_VALUE),
        }
    }
}

/// How an operation accesses a word in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WordAccess {
    /// Blocks the stream until the comparison holds.
    Wait(Comparison),
    /// Writes a value to the word.
    Write,
}

/// An operation on a word in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WordOperation {
    /// Bytes of the word, 4 or 8.
    pub size: u64,
    /// Whether the operation waits for the word or writes it.
    pub access: WordAccess,
    /// The value to write or to compare with, with the width of the word.
    pub value: u64,
}

impl WordOperation {
    /// Decodes an operation of a batch; none for one that only requests an order, which is always kept here. Refuses unknown
    /// operations and flags, and a misaligned word.
    pub fn of_batch(it: &CUstreamBatchMemOpParams) -> Outcome<Option<Self>> {
        let Some(size) = word_size(it)? else { return Ok(None) };
        let access = match it.operation {
            id::WAIT_VALUE_32 | id::WAIT_VALUE_64 => WordAccess::Wait(Comparison::from_flags(it.flags)?),
            _ => {
                check(it.flags & !WRITE_VALUE_NO_MEMORY_BARRIER == 0)?;
                WordAccess::Write
            }
        };
        let value = if size == 4 { it.value & u64::from(u32::MAX) } else { it.value };
        Ok(Some(Self { size, access, value }))
    }

    /// Decodes an operation that is a call of its own: writes have no flags there.
    ///
    /// # Errors
    ///
    /// As [`WordOperation::of_batch`].
    pub fn of_call(it: &CUstreamBatchMemOpParams) -> Outcome<Option<Self>> {
        check(it.flags == 0 || matches!(it.operation, id::WAIT_VALUE_32 | id::WAIT_VALUE_64))?;
        Self::of_batch(it)
    }
}

/// Returns the bytes of an operation's word; none for an operation without one. Refuses unknown operations, and a misaligned
/// word.
pub fn word_size(it: &CUstreamBatchMemOpParams) -> Outcome<Option<u64>> {
    let size = match it.operation {
        id::WAIT_VALUE_32 | id::WRITE_VALUE_32 => 4,
        id::WAIT_VALUE_64 | id::WRITE_VALUE_64 => 8,
        id::FLUSH_REMOTE_WRITES | id::BARRIER => return Ok(None),
        _ => return Err(INVALID_VALUE),
    };
    if it.address.is_multiple_of(size) { Ok(Some(size)) } else { Err(INVALID_VALUE) }
}

/// Returns the operations of `cuStreamBatchMemOp`. There are no flags.
///
/// # Safety
///
/// `operations` is null or has `count` entries.
pub unsafe fn word_operations(
    operations: *const CUstreamBatchMemOpParams,
    count: u32,
    flags: u32,
) -> Outcome<Vec<CUstreamBatchMemOpParams>> {
    check(flags == 0)?;
    // SAFETY: handed on.
    unsafe { caller::array(operations, count as usize, MAX_OPERATIONS) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interprocess_events_have_no_time() {
        for flags in [0, 1, 2, 3, 6, 7] {
            assert_eq!(check_event_flags(flags), Ok(()), "{flags}");
        }
        for flags in [4, 5, 8, 0x80] {
            assert_eq!(check_event_flags(flags), Err(INVALID_VALUE), "{flags}");
        }
        assert_eq!([0, 1, 2].map(is_external), [Ok(false), Ok(true), Err(INVALID_VALUE)]);
    }

    #[test]
    fn streams_have_one_flag_and_a_priority_of_the_device() {
        assert_eq!([0, 1, 2].map(check_flags), [Ok(()), Ok(()), Err(INVALID_VALUE)]);
        assert_eq!([0, 1].map(check_green_flags), [Err(INVALID_VALUE), Ok(())]);
        assert_eq!([-9, -5, -2, 0, 3].map(|requested| priority(requested, 0, -5)), [-5, -5, -2, 0, 0]);
    }

    #[test]
    fn groups_are_for_streams_that_do_not_wait_for_all_others() {
        let takes = |stream, is_per_thread| check_group(stream, is_per_thread, || false).is_ok();
        assert!(takes(CUstream::NULL, true) && takes(CU_STREAM_PER_THREAD, false));
        assert!(!takes(CUstream::NULL, false) && !takes(CU_STREAM_LEGACY, true));
        let stream = CUstream(std::ptr::without_provenance_mut(0x40));
        assert!(!takes(stream, true) && check_group(stream, false, || true).is_ok());
        assert_eq!((check_named(CUstream::NULL), check_named(stream)), (Err(INVALID_VALUE), Ok(())));
    }

    #[test]
    fn the_low_bits_choose_the_comparison() {
        use Comparison::{And, AtLeast, Equal, Nor};
        let chosen = [0, 1, 2, 3, WAIT_VALUE_FLUSH | 1, 4, 9].map(Comparison::from_flags);
        assert_eq!(
            chosen,
            [Ok(AtLeast), Ok(Equal), Ok(And), Ok(Nor), Ok(Equal), Err(INVALID_VALUE), Err(INVALID_VALUE)]
        );
    }

    #[test]
    fn words_lie_at_multiples_of_their_size() {
        let it =
            |operation, address, flags| CUstreamBatchMemOpParams { operation, address, value: !0, flags, rest: [0; 2] };
        let write = WordOperation { size: 4, access: WordAccess::Write, value: u64::from(u32::MAX) };
        assert_eq!(
            WordOperation::of_batch(&it(id::WRITE_VALUE_32, 12, WRITE_VALUE_NO_MEMORY_BARRIER)),
            Ok(Some(write))
        );
        assert_eq!(
            WordOperation::of_call(&it(id::WRITE_VALUE_32, 12, WRITE_VALUE_NO_MEMORY_BARRIER)),
            Err(INVALID_VALUE)
        );
        assert_eq!(WordOperation::of_batch(&it(id::WRITE_VALUE_64, 12, 0)), Err(INVALID_VALUE));
        let wait = WordOperation { size: 8, access: WordAccess::Wait(Comparison::Nor), value: !0 };
        assert_eq!(WordOperation::of_call(&it(id::WAIT_VALUE_64, 16, WAIT_VALUE_FLUSH | 3)), Ok(Some(wait)));
        assert_eq!(
            (WordOperation::of_batch(&it(id::BARRIER, 1, 0)), WordOperation::of_batch(&it(99, 0, 0))),
            (Ok(None), Err(INVALID_VALUE))
        );
    }

    #[test]
    fn a_batch_has_operations_and_no_flags() {
        let list = [CUstreamBatchMemOpParams { operation: 0, address: 0, value: 0, flags: 0, rest: [0; 2] }];
        // SAFETY: one entry, and null.
        let count = |list, count, flags| unsafe { word_operations(list, count, flags) }.map(|it| it.len());
        assert_eq!((count(list.as_ptr(), 1, 0), count(list.as_ptr(), 1, 1)), (Ok(1), Err(INVALID_VALUE)));
        assert_eq!(
            (count(list.as_ptr(), 0, 0), count(std::ptr::null(), 1, 0)),
            (Err(INVALID_VALUE), Err(INVALID_VALUE))
        );
    }
}

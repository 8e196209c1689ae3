//! Options of a module load: two arrays, kinds and values, some of which are answers.
//!
//! A value is a `void *` slot that holds small numbers in itself. Only logs and the time are answered; the rest are hints
//! to a compiler that is not there.

#![expect(unsafe_code, reason = "options are arrays and buffers of the caller")]

use std::ffi::c_void;
use std::ptr;
use std::time::Duration;

use katydid_cuda_sys::{CUjit_option, CUresult, jit_option};

use crate::border::Outcome;

/// More options than there are kinds make no sense.
const MOST: u32 = 64;

/// The caller's arrays.
pub(crate) struct Options {
    /// What each option is.
    kinds: Vec<CUjit_option>,
    /// Where its value is; as many as there are kinds.
    values: *mut *mut c_void,
}

impl Options {
    /// Copies the kinds; the values stay where they are, to be answered in.
    ///
    /// # Safety
    ///
    /// `kinds` and `values` must be null or hold `count` entries, and stay valid as long as the value lives.
    pub(crate) unsafe fn new(count: u32, kinds: *const CUjit_option, values: *mut *mut c_void) -> Outcome<Self> {
        if count > MOST || (count > 0 && (kinds.is_null() || values.is_null())) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        // SAFETY: `count` entries, by the contract.
        let kinds = (0..count as usize).map(|at| unsafe { kinds.add(at).read_unaligned() }).collect();
        Ok(Self { kinds, values })
    }

    /// The place of an option's value, if the caller gave the option.
    fn slot(&self, kind: CUjit_option) -> Option<*mut *mut c_void> {
        let at = self.kinds.iter().position(|other| *other == kind)?;
        // SAFETY: `at` is below the number of entries of both arrays.
        Some(unsafe { self.values.add(at) })
    }

    /// An option's value.
    fn value(&self, kind: CUjit_option) -> Option<*mut c_void> {
        // SAFETY: a slot of the caller's array.
        self.slot(kind).map(|slot| unsafe { slot.read_unaligned() })
    }

    /// Answers the time that loading took.
    pub(crate) fn answer_time(&self, time: Duration) {
        if let Some(slot) = self.slot(jit_option::WALL_TIME) {
            let bits = (time.as_secs_f32() * 1e3).to_bits();
            // SAFETY: the slot is the caller's, and a float takes less room than a pointer.
            unsafe { slot.write_unaligned(ptr::without_provenance_mut(bits as usize)) };
        }
    }

    /// Answers the logs: nothing to tell in the one, `error` in the other.
    pub(crate) fn answer_logs(&self, error: &str) {
        self.answer_log(jit_option::INFO_LOG_BUFFER, jit_option::INFO_LOG_BUFFER_SIZE_BYTES, "");
        self.answer_log(jit_option::ERROR_LOG_BUFFER, jit_option::ERROR_LOG_BUFFER_SIZE_BYTES, error);
    }

    /// Writes what fits of `text` with its NUL, and the number of bytes into the size's slot.
    fn answer_log(&self, buffer: CUjit_option, size: CUjit_option, text: &str) {
        let (Some(buffer), Some(slot)) = (self.value(buffer), self.slot(size)) else { return };
        let room = self.value(size).map_or(0, |value| value.addr() & u32::MAX as usize);
        if buffer.is_null() || room == 0 {
            return;
        }
        let taken = text.len().min(room - 1);
        let written = if text.is_empty() { 0 } else { taken + 1 };
        // SAFETY: the caller's buffer has `room` bytes, of which at most `taken + 1` are written; the slot is the caller's.
        unsafe {
            ptr::copy_nonoverlapping(text.as_ptr(), buffer.cast(), taken);
            buffer.cast::<u8>().add(taken).write(0);
            slot.write_unaligned(ptr::without_provenance_mut(written));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_cut_to_its_buffer_and_counted() {
        let mut buffer = [1_u8; 8];
        let kinds = [jit_option::ERROR_LOG_BUFFER_SIZE_BYTES, jit_option::ERROR_LOG_BUFFER];
        let mut values = [ptr::without_provenance_mut(6), buffer.as_mut_ptr().cast::<c_void>()];
        // SAFETY: two entries each, alive during the test.
        let options = unsafe { Options::new(2, kinds.as_ptr(), values.as_mut_ptr()) }.unwrap();
        options.answer_logs("too long");
        assert_eq!((&buffer[..], values[0].addr()), (&b"too l\0\x01\x01"[..], 6));
    }
}

//! Options of the just-in-time compiler: numbers go to the worker; logs come back and are written to the program's buffers.
//!
//! The arrays have the driver's form: option ids, and values that are numbers or pointers by id. The size of a log is read
//! from and written to the slot of its value.
#![expect(unsafe_code, reason = "reads and writes arrays and buffers of C callers")]

use std::ffi::c_void;
use std::ptr;

use katydid_cuda_sys::{CUresult, jit_option as option};
use katydid_driver_rules::code::check_options;
use katydid_wire::facts::JitOption;

/// The options of one load.
pub(crate) struct Options {
    /// Options that the worker hands to its driver.
    pub(crate) numbers: Vec<JitOption>,
    values: *mut *mut c_void,
    info: Log,
    error: Log,
    /// Position of the slot that takes the wall time.
    wall_time: Option<usize>,
}

/// A log that the program wants.
#[derive(Clone, Copy)]
struct Log {
    buffer: *mut u8,
    size: u32,
    /// Position of the slot with the buffer's size, which receives the size of the log.
    size_slot: Option<usize>,
}

impl Log {
    const NONE: Self = Self { buffer: ptr::null_mut(), size: 0, size_slot: None };

    fn requested_bits(&self) -> u32 {
        if self.buffer.is_null() { 0 } else { self.size }
    }
}

impl Options {
    /// Reads the two arrays.
    ///
    /// # Errors
    ///
    /// `ERROR_INVALID_VALUE` when they are missing, or implausibly long.
    ///
    /// # Safety
    ///
    /// Both arrays are null or have `count` entries, which stay for the whole call, as do the buffers they point to.
    pub(crate) unsafe fn read(count: u32, ids: *mut u32, values: *mut *mut c_void) -> Result<Self, CUresult> {
        check_options(count, ids, values)?;
        let mut options = Self { numbers: Vec::new(), values, info: Log::NONE, error: Log::NONE, wall_time: None };
        for index in 0..count as usize {
            // SAFETY: below `count`, so inside both arrays by the contract.
            let (id, value) = unsafe { (ids.add(index).read_unaligned(), values.add(index).read_unaligned()) };
            options.add(index, id, value);
        }
        Ok(options)
    }

    fn add(&mut self, index: usize, id: u32, value: *mut c_void) {
        let size = || (Some(index), u32::try_from(value.addr() & 0xffff_ffff).unwrap_or(0));
        match id {
            option::INFO_LOG_BUFFER => self.info.buffer = value.cast(),
            option::ERROR_LOG_BUFFER => self.error.buffer = value.cast(),
            option::INFO_LOG_BUFFER_SIZE_BYTES => (self.info.size_slot, self.info.size) = size(),
            option::ERROR_LOG_BUFFER_SIZE_BYTES => (self.error.size_slot, self.error.size) = size(),
            option::WALL_TIME => self.wall_time = Some(index),
            _ => self.numbers.push(JitOption { id, value: value.addr() as u64 }),
        }
    }

    /// Sizes of the program's log buffers in bytes: information, errors.
    pub(crate) fn log_sizes(&self) -> (u32, u32) {
        (self.info.requested_bits(), self.error.requested_bits())
    }

    /// Writes the logs, which end with a NUL, to the program's buffers, and their lengths into the array.
    ///
    /// # Safety
    ///
    /// As [`Options::read`], still.
    pub(crate) unsafe fn write(&self, info: &[u8], error: &[u8]) {
        for (log, text) in [(self.info, info), (self.error, error)] {
            // SAFETY: handed on.
            unsafe { self.write_log(log, text) };
        }
        if let Some(index) = self.wall_time {
            // SAFETY: the slot is inside the array by the contract. The time is a float in the slot's low half. The
            // compiler's time is not known here; zero is what a driver answers that found the code in its cache.
            unsafe { self.values.add(index).write_unaligned(ptr::null_mut()) };
        }
    }

    /// # Safety
    ///
    /// As [`Options::read`].
    unsafe fn write_log(&self, log: Log, text: &[u8]) {
        let length = text.len().min(log.requested_bits() as usize);
        if let Some(end) = length.checked_sub(1) {
            // SAFETY: the buffer has as many bytes as its size says by the contract, and `length` is at most that.
            unsafe {
                log.buffer.copy_from_nonoverlapping(text.as_ptr(), end);
                log.buffer.add(end).write(0);
            }
        } else if log.requested_bits() > 0 {
            // SAFETY: the buffer has at least one byte.
            unsafe { log.buffer.write(0) };
        }
        if let Some(index) = log.size_slot {
            let length = ptr::without_provenance_mut(length.saturating_sub(1));
            // SAFETY: the slot is inside the array by the contract.
            unsafe { self.values.add(index).write_unaligned(length) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_travel_and_logs_come_back() {
        let mut buffer = [7u8; 8];
        let mut ids = [option::ERROR_LOG_BUFFER, option::ERROR_LOG_BUFFER_SIZE_BYTES, option::MAX_REGISTERS, 2];
        let number = ptr::without_provenance_mut;
        let mut values = [buffer.as_mut_ptr().cast(), number(6), number(32), number(9)];
        // SAFETY: both arrays have four entries, and the buffer the size that they say.
        let options = unsafe { Options::read(4, ids.as_mut_ptr(), values.as_mut_ptr()) }.unwrap();
        assert_eq!(options.numbers, [JitOption { id: option::MAX_REGISTERS, value: 32 }]);
        assert_eq!(options.log_sizes(), (0, 6));
        // SAFETY: as above.
        unsafe { options.write(b"ignored\0", b"too long\0") };
        assert_eq!(&buffer, b"too l\0\x07\x07");
        assert_eq!((values[1].addr(), values[3].addr()), (5, 0));
    }

    #[test]
    fn an_empty_log_is_an_empty_text_of_size_zero() {
        let mut buffer = [7u8; 2];
        let mut ids = [option::INFO_LOG_BUFFER, option::INFO_LOG_BUFFER_SIZE_BYTES];
        let mut values = [buffer.as_mut_ptr().cast(), ptr::without_provenance_mut(2)];
        // SAFETY: both arrays have two entries, and the buffer the size that they say.
        unsafe { Options::read(2, ids.as_mut_ptr(), values.as_mut_ptr()).unwrap().write(b"", b"") };
        assert_eq!((buffer, values[1].addr()), ([0, 7], 0));
    }

    #[test]
    fn missing_arrays_are_refused() {
        // SAFETY: null arrays are never read.
        unsafe {
            assert!(Options::read(1, ptr::null_mut(), ptr::null_mut()).is_err());
            assert!(Options::read(0, ptr::null_mut(), ptr::null_mut()).is_ok());
        }
    }
}

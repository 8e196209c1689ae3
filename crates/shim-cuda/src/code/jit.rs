//! Options of the just-in-time compiler: numbers travel; answers come back and are written where the program wants them.
//!
//! The arrays are the driver's: option ids, and values that are numbers or pointers by id. Sizes of logs and the number of
//! threads are read from and written to the value's slot itself, as the worker's driver has written them to its own.
#![expect(unsafe_code, reason = "reads and writes arrays and buffers of C callers")]

use std::ffi::c_void;
use std::ptr;

use katydid_cuda_sys::{CUresult, jit_option as option};
use katydid_driver_rules::code::check_options;
use katydid_wire::facts::JitOption;
use katydid_wire::message::{kdLibraryLoadReply, kdLinkReply, kdModuleLoadReply};

/// The options of one load.
pub(crate) struct Options {
    /// Options that the worker hands to its driver.
    pub(crate) numbers: Vec<JitOption>,
    values: *mut *mut c_void,
    info: Log,
    error: Log,
    /// Position of the slot that takes the wall time.
    wall_time: Option<usize>,
    /// Position of the slot that takes the number of threads.
    threads: Option<usize>,
}

/// What the worker's driver has answered.
pub(crate) struct Answers<'a> {
    /// Logs with their NUL.
    pub(crate) logs: [&'a [u8]; 2],
    /// Lengths of the logs for the slots of their sizes.
    pub(crate) lengths: [u32; 2],
    /// Threads of a block that the code is made for.
    pub(crate) threads: u32,
}

/// The replies that have answers: in fields of the same names.
macro_rules! answers {
    ($($reply:ty),*) => {$(
        impl<'a> From<&'a $reply> for Answers<'a> {
            fn from(reply: &'a $reply) -> Self {
                Self {
                    logs: [&reply.infoLog, &reply.errorLog],
                    lengths: [reply.infoLength, reply.errorLength],
                    threads: reply.threads,
                }
            }
        }
    )*};
}

answers!(kdModuleLoadReply, kdLibraryLoadReply, kdLinkReply);

/// A log that the program wants.
#[derive(Clone, Copy)]
struct Log {
    /// The option with the buffer was given, which may be null.
    is_given: bool,
    buffer: *mut u8,
    size: u32,
    /// Position of the slot with the buffer's size, which receives the size of the log.
    size_slot: Option<usize>,
}

impl Log {
    const NONE: Self = Self { is_given: false, buffer: ptr::null_mut(), size: 0, size_slot: None };

    fn give(&mut self, buffer: *mut c_void) {
        (self.is_given, self.buffer) = (true, buffer.cast());
    }

    fn requested_bits(&self) -> u32 {
        if self.buffer.is_null() { 0 } else { self.size }
    }
}

impl Options {
    /// Reads the two arrays.
    ///
    /// # Errors
    ///
    /// `ERROR_INVALID_VALUE` when they are missing, or too long to be meant, or have a log's buffer without its size or the
    /// size without the buffer.
    ///
    /// # Safety
    ///
    /// Both arrays are null or have `count` entries, which stay for the whole call, as do the buffers they point to.
    pub(crate) unsafe fn read(count: u32, ids: *mut u32, values: *mut *mut c_void) -> Result<Self, CUresult> {
        check_options(count, ids, values)?;
        let (info, error) = (Log::NONE, Log::NONE);
        let mut options = Self { numbers: Vec::new(), values, info, error, wall_time: None, threads: None };
        for index in 0..count as usize {
            // SAFETY: below `count`, so inside both arrays by the contract.
            let (id, value) = unsafe { (ids.add(index).read_unaligned(), values.add(index).read_unaligned()) };
            options.add(index, id, value);
        }
        let whole = [options.info, options.error].iter().all(|log| log.is_given == log.size_slot.is_some());
        if whole { Ok(options) } else { Err(CUresult::ERROR_INVALID_VALUE) }
    }

    fn add(&mut self, index: usize, id: u32, value: *mut c_void) {
        let size = || (Some(index), u32::try_from(value.addr() & 0xffff_ffff).unwrap_or(0));
        match id {
            option::INFO_LOG_BUFFER => self.info.give(value),
            option::ERROR_LOG_BUFFER => self.error.give(value),
            option::INFO_LOG_BUFFER_SIZE_BYTES => (self.info.size_slot, self.info.size) = size(),
            option::ERROR_LOG_BUFFER_SIZE_BYTES => (self.error.size_slot, self.error.size) = size(),
            option::WALL_TIME => self.wall_time = Some(index),
            _ => self.numbers.push(JitOption { id, value: value.addr() as u64 }),
        }
        if id == option::THREADS_PER_BLOCK {
            self.threads = Some(index);
        }
    }

    /// Sizes of the program's log buffers in bytes: information, errors.
    pub(crate) fn log_sizes(&self) -> (u32, u32) {
        (self.info.requested_bits(), self.error.requested_bits())
    }

    /// Puts the logs where the program wants them, and their lengths and the number of threads into the array.
    ///
    /// # Safety
    ///
    /// As [`Options::read`], still.
    pub(crate) unsafe fn write(&self, answers: &Answers<'_>) {
        for ((log, text), length) in [self.info, self.error].into_iter().zip(answers.logs).zip(answers.lengths) {
            // SAFETY: handed on.
            unsafe { self.write_log(log, text, length) };
        }
        if let Some(index) = self.threads {
            // SAFETY: the slot is inside the array by the contract.
            unsafe { self.values.add(index).write_unaligned(ptr::without_provenance_mut(answers.threads as usize)) };
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
    unsafe fn write_log(&self, log: Log, text: &[u8], counted: u32) {
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
            // SAFETY: the slot is inside the array by the contract.
            unsafe { self.values.add(index).write_unaligned(ptr::without_provenance_mut(counted as usize)) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_travel_and_logs_come_back() {
        let mut buffer = [7u8; 8];
        let mut ids = [option::ERROR_LOG_BUFFER, option::ERROR_LOG_BUFFER_SIZE_BYTES, option::THREADS_PER_BLOCK, 2];
        let number = ptr::without_provenance_mut;
        let mut values = [buffer.as_mut_ptr().cast(), number(6), number(33), number(9)];
        // SAFETY: both arrays have four entries, and the buffer the size that they say.
        let options = unsafe { Options::read(4, ids.as_mut_ptr(), values.as_mut_ptr()) }.unwrap();
        assert_eq!(options.numbers, [JitOption { id: option::THREADS_PER_BLOCK, value: 33 }]);
        assert_eq!(options.log_sizes(), (0, 6));
        let answers = Answers { logs: [b"ignored\0", b"too long\0"], lengths: [0, 6], threads: 64 };
        // SAFETY: as above.
        unsafe { options.write(&answers) };
        assert_eq!(&buffer, b"too l\0\x07\x07");
        assert_eq!((values[1].addr(), values[2].addr(), values[3].addr()), (6, 64, 0));
    }

    #[test]
    fn an_empty_log_is_an_empty_text_of_size_zero() {
        let mut buffer = [7u8; 2];
        let mut ids = [option::INFO_LOG_BUFFER, option::INFO_LOG_BUFFER_SIZE_BYTES];
        let mut values = [buffer.as_mut_ptr().cast(), ptr::without_provenance_mut(2)];
        let answers = Answers { logs: [b"", b""], lengths: [0, 0], threads: 0 };
        // SAFETY: both arrays have two entries, and the buffer the size that they say.
        unsafe { Options::read(2, ids.as_mut_ptr(), values.as_mut_ptr()).unwrap().write(&answers) };
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

    #[test]
    fn a_buffer_needs_its_size_and_a_size_its_buffer() {
        for id in 3..=6 {
            let (mut id, mut value) = (id, ptr::null_mut());
            // SAFETY: one entry each, locals.
            assert!(unsafe { Options::read(1, &raw mut id, &raw mut value) }.is_err(), "{id}");
        }
    }
}

//! Options of a compilation: two arrays, of kinds and of values, and some values are outputs.
//!
//! A value is a `void *` slot that holds small numbers itself. Logs, times and the number of threads are answered, and registers
//! are limited. The other options are checked as the real driver checks them. Otherwise they are hints to a compiler that does
//! not exist here.

#![expect(unsafe_code, reason = "options are arrays and buffers of the caller")]

use std::ffi::c_void;
use std::ptr;
use std::time::Duration;

use katydid_cuda_sys::{CUjit_option, CUresult, jit_option as id};
use katydid_driver_rules::code::check_options;
use katydid_fatbin::Compilation;

use crate::code::occupancy::most_registers;
use crate::ffi::{Outcome, unsupported};
use crate::process::attributes::COMPUTE_CAPABILITY;

/// Kinds of driver 13.0 are below this number.
const OPTION_KINDS: u32 = 35;

/// Architectures that `TARGET` may name, the device's among them.
const TARGET_ARCHITECTURES: [usize; 22] =
    [30, 32, 35, 37, 50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 89, 90, 100, 101, 103, 120];

/// Added to a target for the features of one architecture alone, as in `CU_TARGET_COMPUTE_90A`.
const ARCHITECTURE_FEATURES: usize = 0x10000;

/// The caller's arrays of JIT options and their values.
pub(crate) struct Options {
    /// Kind of each option.
    kinds: Vec<CUjit_option>,
    /// Values of the options, as many as there are kinds.
    values: *mut *mut c_void,
    /// Capacities of the info and error log buffers. Their slots hold the number of written bytes later.
    rooms: [usize; 2],
}

// SAFETY: the pointers are the program's, which keeps them valid for whichever thread it links on.
unsafe impl Send for Options {}

impl Options {
    /// Copies the kinds. The values stay in the caller's memory, for the outputs.
    ///
    /// # Errors
    ///
    /// 1 for a kind or value that the driver does not accept, 300 for another device, 218 for optimised code with debug
    /// information.
    ///
    /// # Safety
    ///
    /// `kinds` and `values` must be null or hold `count` entries, and stay valid as long as the value lives.
    pub(crate) unsafe fn new(count: u32, kinds: *const CUjit_option, values: *mut *mut c_void) -> Outcome<Self> {
        check_options(count, kinds, values)?;
        // SAFETY: `count` entries, by the contract.
        let kinds = (0..count as usize).map(|at| unsafe { kinds.add(at).read_unaligned() }).collect();
        let mut options = Self { kinds, values, rooms: [0; 2] };
        options.rooms = [id::INFO_LOG_BUFFER_SIZE_BYTES, id::ERROR_LOG_BUFFER_SIZE_BYTES]
            .map(|size| options.value(size).map_or(0, |value| value.addr() & u32::MAX as usize));
        options.kinds.iter().try_for_each(|kind| options.check(*kind))?;
        if options.is_debugged() && options.value(id::OPTIMIZATION_LEVEL).is_some_and(|level| level.addr() as u32 != 0)
        {
            // Optimised code cannot be debugged.
            return Err(CUresult::ERROR_INVALID_PTX);
        }
        options.answer_threads();
        Ok(options)
    }

    /// Refuses a value that the driver refuses.
    fn check(&self, kind: CUjit_option) -> Outcome {
        let number = self.value(kind).map_or(0, |value| value.addr());
        let device = (COMPUTE_CAPABILITY.0 * 10 + COMPUTE_CAPABILITY.1) as usize;
        let wrong = match kind {
            id::MAX_REGISTERS => number == 0,
            id::INFO_LOG_BUFFER_SIZE_BYTES => self.value(id::INFO_LOG_BUFFER).is_none(),
            id::ERROR_LOG_BUFFER_SIZE_BYTES => self.value(id::ERROR_LOG_BUFFER).is_none(),
            id::INFO_LOG_BUFFER => self.value(id::INFO_LOG_BUFFER_SIZE_BYTES).is_none(),
            id::ERROR_LOG_BUFFER => self.value(id::ERROR_LOG_BUFFER_SIZE_BYTES).is_none(),
            id::TARGET if number == device || number == device | ARCHITECTURE_FEATURES => false,
            id::TARGET if TARGET_ARCHITECTURES.contains(&(number & 0xffff)) => {
                return Err(CUresult::ERROR_INVALID_SOURCE);
            }
            id::TARGET => true,
            id::CACHE_MODE => number > 2,
            id::GLOBAL_SYMBOL_NAMES..=id::GLOBAL_SYMBOL_COUNT => {
                return Err(unsupported("a symbol given to the linker"));
            }
            _ => kind >= OPTION_KINDS,
        };
        if wrong { Err(CUresult::ERROR_INVALID_VALUE) } else { Ok(()) }
    }

    /// Returns the slot of an option's value, if the caller gave the option.
    fn slot(&self, kind: CUjit_option) -> Option<*mut *mut c_void> {
        let at = self.kinds.iter().position(|other| *other == kind)?;
        // SAFETY: `at` is below the number of entries of both arrays.
        Some(unsafe { self.values.add(at) })
    }

    /// Returns the value of the option of this kind, if it was given.
    fn value(&self, kind: CUjit_option) -> Option<*mut c_void> {
        // SAFETY: a slot of the caller's array.
        self.slot(kind).map(|slot| unsafe { slot.read_unaligned() })
    }

    /// Returns the settings of these options for a compilation.
    pub(crate) fn compilation(&self) -> Compilation {
        Compilation { max_registers: self.max_registers(), contracts: self.contracts() }
    }

    /// Returns whether products and sums are contracted. They are not without optimisation, which debugging rules out too.
    fn contracts(&self) -> Option<bool> {
        if self.is_debugged() {
            return Some(false);
        }
        self.value(id::OPTIMIZATION_LEVEL).map(|level| level.addr() as u32 != 0)
    }

    /// Returns whether the program wants to debug its kernels.
    fn is_debugged(&self) -> bool {
        self.value(id::GENERATE_DEBUG_INFO).is_some_and(|value| value.addr() as u32 != 0)
    }

    /// Returns the register limit of a thread, set directly or by the threads that a block needs.
    fn max_registers(&self) -> Option<u32> {
        let number = |kind| self.value(kind).map(|value| value.addr() as u32).filter(|number| *number > 0);
        let by_threads = number(id::THREADS_PER_BLOCK).map(most_registers);
        number(id::MAX_REGISTERS).into_iter().chain(by_threads).min()
    }

    /// Returns whether the program wants details about its code.
    pub(crate) fn is_verbose(&self) -> bool {
        self.value(id::LOG_VERBOSE).is_some_and(|value| value.addr() as u32 != 0)
    }

    /// Whether there is room for a log.
    pub(crate) fn wants_logs(&self) -> bool {
        self.rooms.iter().any(|room| *room > 0)
    }

    /// Answers the threads that code is made for: whole warps.
    fn answer_threads(&self) {
        if let Some(slot) = self.slot(id::THREADS_PER_BLOCK) {
            // SAFETY: a slot of the caller's array.
            let thread_count = unsafe { slot.read_unaligned() }.addr() as u32;
            let whole = thread_count.max(1).checked_next_multiple_of(32).unwrap_or(thread_count);
            // SAFETY: as above.
            unsafe { slot.write_unaligned(ptr::without_provenance_mut(whole as usize)) };
        }
    }

    /// Writes the time that loading took.
    pub(crate) fn answer_time(&self, time: Duration) {
        if let Some(slot) = self.slot(id::WALL_TIME) {
            let bits = (time.as_secs_f32() * 1e3).to_bits();
            // SAFETY: the slot is the caller's, and a float takes less room than a pointer.
            unsafe { slot.write_unaligned(ptr::without_provenance_mut(bits as usize)) };
        }
    }

    /// Writes both logs to the caller's buffers.
    pub(crate) fn answer_logs(&self, info: &str, error: &str) {
        self.answer_log((id::INFO_LOG_BUFFER, id::INFO_LOG_BUFFER_SIZE_BYTES), self.rooms[0], info);
        self.answer_log((id::ERROR_LOG_BUFFER, id::ERROR_LOG_BUFFER_SIZE_BYTES), self.rooms[1], error);
    }

    /// Writes as much of `text` as fits, with its NUL, and the number of bytes into the size's slot.
    fn answer_log(&self, (buffer, size): (CUjit_option, CUjit_option), capacity: usize, text: &str) {
        let (Some(buffer), Some(slot)) = (self.value(buffer), self.slot(size)) else { return };
        if buffer.is_null() || capacity == 0 {
            return;
        }
        let text_bytes = text.len().min(capacity - 1);
        let written = if text_bytes == 0 { 0 } else { text_bytes + 1 };
        // SAFETY: the caller's buffer has `capacity` bytes, of which `text_bytes + 1` are written; the slot is the caller's.
        unsafe {
            ptr::copy_nonoverlapping(text.as_ptr(), buffer.cast(), text_bytes);
            buffer.cast::<u8>().add(text_bytes).write(0);
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
        let kinds = [id::ERROR_LOG_BUFFER_SIZE_BYTES, id::ERROR_LOG_BUFFER];
        let mut values = [ptr::without_provenance_mut(6), buffer.as_mut_ptr().cast::<c_void>()];
        // SAFETY: two entries each, alive during the test.
        let options = unsafe { Options::new(2, kinds.as_ptr(), values.as_mut_ptr()) }.unwrap();
        options.answer_logs("", "too long");
        assert_eq!((&buffer[..], values[0].addr()), (&b"too l\0\x01\x01"[..], 6));
        options.answer_logs("", "");
        options.answer_logs("", "again");
        assert_eq!((&buffer[..6], values[0].addr()), (&b"again\0"[..], 6));
    }

    #[test]
    fn values_are_refused_as_the_driver_does() {
        let code = |kind: u32, value: usize| {
            let mut value = ptr::without_provenance_mut(value);
            // SAFETY: one entry each, locals.
            unsafe { Options::new(1, &kind, &mut value) }.err()
        };
        let invalid = Some(CUresult::ERROR_INVALID_VALUE);
        assert_eq!([code(0, 0), code(4, 1), code(6, 1), code(14, 3), code(9, 12_345), code(35, 1)], [invalid; 6]);
        assert_eq!([code(9, 75), code(9, 100)], [Some(CUresult::ERROR_INVALID_SOURCE); 2]);
        assert_eq!([code(0, 16), code(7, 5), code(9, 90), code(14, 2), code(10, 2), code(34, 1)], [None; 6]);
        assert_eq!([code(9, 0x1005a), code(9, 0x1_0064)], [None, Some(CUresult::ERROR_INVALID_SOURCE)]);
    }

    #[test]
    fn registers_are_limited_by_number_and_by_threads() {
        let limit = |kinds: [u32; 2], values: [usize; 2]| {
            let mut values = values.map(ptr::without_provenance_mut);
            // SAFETY: two entries each, locals.
            unsafe { Options::new(2, kinds.as_ptr(), values.as_mut_ptr()) }.unwrap().max_registers()
        };
        let (most, threads) = (id::MAX_REGISTERS, id::THREADS_PER_BLOCK);
        assert_eq!(limit([most, id::LOG_VERBOSE], [38, 0]), Some(38));
        assert_eq!((limit([most, threads], [38, 1024]), limit([most, threads], [80, 1000])), (Some(38), Some(64)));
        assert_eq!(limit([id::LOG_VERBOSE, id::GENERATE_LINE_INFO], [1, 1]), None);
    }

    #[test]
    fn contraction_goes_with_optimization_and_without_debugging() {
        let contracts = |kinds: [u32; 2], values: [usize; 2]| {
            let mut values = values.map(ptr::without_provenance_mut);
            // SAFETY: two entries each, locals.
            unsafe { Options::new(2, kinds.as_ptr(), values.as_mut_ptr()) }
                .map(|options| options.compilation().contracts)
        };
        let (level, debug) = (id::OPTIMIZATION_LEVEL, id::GENERATE_DEBUG_INFO);
        assert_eq!(contracts([level, debug], [0, 0]), Ok(Some(false)));
        assert_eq!(contracts([level, debug], [1, 0]), Ok(Some(true)));
        assert_eq!(contracts([level, debug], [0, 1]), Ok(Some(false)));
        assert_eq!(contracts([id::LOG_VERBOSE, debug], [0, 1]), Ok(Some(false)));
        assert_eq!(contracts([id::LOG_VERBOSE, id::CACHE_MODE], [0, 0]), Ok(None));
        assert_eq!(contracts([level, debug], [4, 1]), Err(CUresult::ERROR_INVALID_PTX));
    }

    #[test]
    fn threads_are_answered_in_whole_warps() {
        let mut value = ptr::without_provenance_mut(33);
        // SAFETY: one entry each, locals.
        assert!(unsafe { Options::new(1, &id::THREADS_PER_BLOCK, &mut value) }.is_ok());
        assert_eq!(value.addr(), 64);
    }
}

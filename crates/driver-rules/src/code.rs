//! Device code: options of the compiler, inputs of the linker, attributes of functions.

use katydid_cuda_sys::{CUresult, jit_input};

use crate::outcome::{Outcome, check};

/// Most options of one call: there are fewer kinds.
const MAX_JIT_OPTIONS: u32 = 64;

/// Checks the arrays of the compiler's options. Refuses missing arrays, and more options than there can be.
pub const fn check_options<K, V>(count: u32, kinds: *const K, values: *const V) -> Outcome {
    check(count <= MAX_JIT_OPTIONS && (count == 0 || !(kinds.is_null() || values.is_null())))
}

/// The progress of a linking: after a failure, all later calls return its code.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LinkProgress {
    failure: Option<CUresult>,
    is_complete: bool,
}

impl LinkProgress {
    /// Checks that a linking takes inputs.
    ///
    /// # Errors
    ///
    /// The code that failed it; `ERROR_INVALID_VALUE` once it is complete.
    pub fn check_open(&self) -> Outcome {
        self.failure.map_or(Ok(()), Err)?;
        check(!self.is_complete)
    }

    /// Checks that a linking can be completed.
    ///
    /// # Errors
    ///
    /// The code that failed it; `ERROR_INVALID_HANDLE` once it is complete.
    pub fn check_incomplete(&self) -> Outcome {
        self.failure.map_or(Ok(()), Err)?;
        if self.is_complete { Err(CUresult::ERROR_INVALID_HANDLE) } else { Ok(()) }
    }

    /// Notes that an input of a kind was refused. Refused machine code and LTO code fail all later calls, and so does a name
    /// that is defined twice. After other refusals the linking goes on.
    pub fn refuse(&mut self, kind: u32, code: CUresult) {
        let is_fatal = matches!(kind, jit_input::CUBIN | jit_input::NVVM) || code == CUresult::ERROR_INVALID_SOURCE;
        if is_fatal {
            self.fail(code);
        }
    }

    /// Makes every later call return this code.
    pub fn fail(&mut self, code: CUresult) {
        self.failure = Some(code);
    }

    /// Notes that the image is made.
    pub fn complete(&mut self) {
        self.is_complete = true;
    }
}

/// Checks an input of the linker: its kind is known, and it has at most `most` bytes. Refuses null, a size of 0 and larger
/// inputs.
pub const fn check_input<T>(kind: u32, data: *const T, size: usize, most: usize) -> Outcome {
    check(kind <= jit_input::NVVM && !data.is_null() && size > 0 && size <= most)
}

/// Checks a function's dynamic shared memory: at most what static memory leaves of the opt-in limit for blocks.
pub fn check_dynamic_shared(value: i32, opt_in: i32, fixed: i32) -> Outcome {
    check((0..=opt_in.saturating_sub(fixed)).contains(&value))
}

/// Checks the preferred share of shared memory, in percent; -1 for none.
pub fn check_carveout(value: i32) -> Outcome {
    check((-1..=100).contains(&value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::INVALID_VALUE;

    #[test]
    fn options_are_pairs_and_not_too_many() {
        let option = [0_u32];
        let (present, missing) = (option.as_ptr(), std::ptr::null::<u32>());
        assert_eq!((check_options(1, present, present), check_options(0, missing, missing)), (Ok(()), Ok(())));
        for wrong in [
            check_options(1, present, missing),
            check_options(1, missing, present),
            check_options(65, present, present),
        ] {
            assert_eq!(wrong, Err(INVALID_VALUE));
        }
    }

    #[test]
    fn inputs_have_bytes_and_a_kind() {
        let (present, missing) = ([0_u32].as_ptr(), std::ptr::null::<u32>());
        assert_eq!(check_input(jit_input::NVVM, present, 4, 4), Ok(()));
        for wrong in [
            check_input(6, present, 4, 4),
            check_input(1, present, 0, 4),
            check_input(1, missing, 4, 4),
            check_input(1, present, 5, 4),
        ] {
            assert_eq!(wrong, Err(INVALID_VALUE));
        }
    }

    #[test]
    fn a_failed_link_answers_all_later_calls() {
        let mut link = LinkProgress::default();
        link.refuse(jit_input::PTX, CUresult::ERROR_INVALID_PTX);
        assert_eq!((link.check_open(), link.check_incomplete()), (Ok(()), Ok(())));
        for (kind, code) in
            [(jit_input::PTX, CUresult::ERROR_INVALID_SOURCE), (jit_input::CUBIN, CUresult::ERROR_INVALID_IMAGE)]
        {
            let mut failed = link;
            failed.refuse(kind, code);
            assert_eq!((failed.check_open(), failed.check_incomplete()), (Err(code), Err(code)));
        }
        link.complete();
        assert_eq!(
            (link.check_open(), link.check_incomplete()),
            (Err(INVALID_VALUE), Err(CUresult::ERROR_INVALID_HANDLE))
        );
    }

    #[test]
    fn dynamic_shared_memory_is_what_static_leaves_of_the_opt_in() {
        for (value, is_right) in [(0, true), (232_448 - 16384, true), (232_448 - 16383, false), (-1, false)] {
            assert_eq!(check_dynamic_shared(value, 232_448, 16384).is_ok(), is_right, "{value}");
        }
        assert_eq!([-2, -1, 100, 101].map(|value| check_carveout(value).is_ok()), [false, true, true, false]);
    }
}

//! Helpers for the exported symbols of every shim: panics, refusals, outputs of C callers.
#![expect(unsafe_code, reason = "writes where C callers want results")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::output::report;

/// Runs the body of an exported function. A panic does not unwind into the program: it is reported, and none is returned.
#[inline]
pub fn catch_panics<R>(name: impl FnOnce() -> &'static str, body: impl FnOnce() -> R) -> Option<R> {
    catch_unwind(AssertUnwindSafe(body)).map_err(|_| say_panic(name())).ok()
}

#[cold]
fn say_panic(name: &str) {
    report(format_args!("{name}: internal error in Katydid, at the place that the lines above name; please report it"));
}

/// The functions refused so far, by number: each is reported once.
#[derive(Debug)]
pub struct Refusals<const N: usize>([AtomicBool; N]);

impl<const N: usize> Refusals<N> {
    /// Starts with no refusal recorded.
    #[expect(clippy::new_without_default, reason = "statics need a constant")]
    pub const fn new() -> Self {
        Self([const { AtomicBool::new(false) }; N])
    }

    /// Reports, once for each function, that the function `number` is refused, and `why`.
    #[cold]
    pub fn report(&self, number: usize, function: &str, why: &str) {
        if self.0.get(number).is_none_or(|is_reported| !is_reported.swap(true, Ordering::Relaxed)) {
            report(format_args!("{function} {why}"));
        }
    }
}

/// Writes an output that the caller may omit.
///
/// # Safety
///
/// `out` is null, or valid for writing one `T` until the call returns.
#[inline]
pub unsafe fn write_optional<T>(out: *mut T, value: T) {
    if !out.is_null() {
        // SAFETY: not null, so writable by this function's contract; an output may be unaligned for Rust, never for C.
        unsafe { out.write_unaligned(value) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_returns_nothing() {
        let run = |fails: bool| catch_panics(|| "clFlush", || if fails { panic!("on purpose") } else { 7 });
        assert_eq!([false, true].map(run), [Some(7), None]);
    }

    #[test]
    fn outputs_that_are_left_out_are_not_written() {
        let mut value = 1u32;
        // SAFETY: null, and a local.
        unsafe {
            write_optional(std::ptr::null_mut(), 9u32);
            write_optional(&raw mut value, 7);
        }
        assert_eq!(value, 7);
    }
}

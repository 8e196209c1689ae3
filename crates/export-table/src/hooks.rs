//! The table HOOKS (7 words): the runtime calls that a tool wants to see. There is no tool, so none.
//!
//! Both arrays have 32-bit elements and the count is in *elements*. Runtimes index them by callback id without a proper
//! check of the count, so arrays that are too short would read as "a tool is attached" and crash.

#![expect(unsafe_code, reason = "slots write through the raw pointers of C callers")]

use std::sync::atomic::AtomicU32;

use crate::catalogue;
use crate::table::{Word, WordTable};

pub(crate) static TABLE: WordTable<7> = WordTable::sized::<{ catalogue::HOOKS_INDEX }>(
    &[(2, runtime_calls as *const () as Word), (6, driver_calls as *const () as Word)],
    &[],
);

/// Atomics, so that writes of a tool through the returned pointer are sound.
static RUNTIME_CALLS: [AtomicU32; 1024] = [const { AtomicU32::new(0) }; 1024];
static DRIVER_CALLS: [AtomicU32; 14] = [const { AtomicU32::new(0) }; 14];

unsafe extern "C" fn runtime_calls(array: *mut *const AtomicU32, count: *mut usize) {
    // SAFETY: the caller's pointers, null or writable: the contract of `hand_out`.
    unsafe { hand_out(&RUNTIME_CALLS, array, count) }
}

unsafe extern "C" fn driver_calls(array: *mut *const AtomicU32, count: *mut usize) {
    // SAFETY: the caller's pointers, null or writable: the contract of `hand_out`.
    unsafe { hand_out(&DRIVER_CALLS, array, count) }
}

/// Writes address and length of `flags`.
///
/// # Safety
///
/// `array` and `count` are each null or writable; the runtime that holds the table upholds it.
unsafe fn hand_out(flags: &'static [AtomicU32], array: *mut *const AtomicU32, count: *mut usize) {
    // SAFETY: null or writable, by this function's contract.
    if let Some(array) = unsafe { array.as_mut() } {
        *array = flags.as_ptr();
    }
    // SAFETY: null or writable, by this function's contract.
    if let Some(count) = unsafe { count.as_mut() } {
        *count = flags.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr;

    #[test]
    fn the_counts_are_elements_of_four_bytes() {
        let (mut array, mut count) = (ptr::null(), 0);
        // SAFETY: both point to locals.
        unsafe { runtime_calls(&mut array, &mut count) };
        assert_eq!((array, count), (RUNTIME_CALLS.as_ptr(), 1024));
        // SAFETY: both point to locals.
        unsafe { driver_calls(&mut array, &mut count) };
        assert_eq!((array, count, size_of_val(&DRIVER_CALLS)), (DRIVER_CALLS.as_ptr(), 14, 56));
    }
}

//! The table SM_MAP (17 words): cuBLASLt asks for the positions of the device's multiprocessors.
//!
//! | slot | what                                                                                        |
//! |-----:|---------------------------------------------------------------------------------------------|
//! |    4 | two arrays of a byte for each pair of multiprocessors, of the current context's device      |
//! |   13 | gives both arrays back; null is nothing                                                     |
//!
//! The C library allocates the arrays: the caller may keep them as long as it likes.

#![expect(unsafe_code, reason = "slots hand memory to C callers")]

use crate::catalogue;
use crate::facts::facts;
use crate::ffi::{Status, guard, status};
use crate::table::{Word, WordTable};

pub(crate) static TABLE: WordTable<17> = WordTable::sized::<{ catalogue::SM_MAP_INDEX }>(
    &[(4, map_pointers as *const () as Word), (13, give_back as *const () as Word)],
    &[],
);

unsafe extern "C" fn map_pointers(first: *mut *mut u8, second: *mut *mut u8) -> Status {
    guard(|| {
        if first.is_null() || second.is_null() {
            return Err(status::INVALID_VALUE);
        }
        let (of_first, of_second) = facts()?.multiprocessor_locations()?;
        let first_copy = copy(&of_first).ok_or(status::OUT_OF_MEMORY)?;
        let Some(other) = copy(&of_second) else {
            // SAFETY: `copy` made it, and no other owner exists.
            unsafe { libc::free(first_copy.cast()) };
            return Err(status::OUT_OF_MEMORY);
        };
        // SAFETY: both are writable, which is what callers of the slot pass; null was refused above.
        unsafe {
            first.write(first_copy);
            second.write(other);
        }
        Ok(())
    })
}

unsafe extern "C" fn give_back(first: *mut u8, second: *mut u8) -> Status {
    // SAFETY: arrays of slot 4, which returns each once, or null.
    unsafe {
        libc::free(first.cast());
        libc::free(second.cast());
    }
    status::SUCCESS
}

/// Copies the bytes to memory of the C library; none if there is no memory.
fn copy(bytes: &[u8]) -> Option<*mut u8> {
    // SAFETY: without a precondition.
    let copy = unsafe { libc::malloc(bytes.len().max(1)) }.cast::<u8>();
    if copy.is_null() {
        return None;
    }
    // SAFETY: just allocated, as long as the bytes.
    unsafe { copy.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    Some(copy)
}

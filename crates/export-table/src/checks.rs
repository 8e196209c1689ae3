//! The table CHECKS (15 words): a context check at first use, and a process check at start. Both always pass.

#![expect(unsafe_code, reason = "slots write through the raw pointers of C callers")]

use crate::catalogue;
use crate::facts::Handle;
use crate::ffi::{Status, guard, status};
use crate::table::{Word, WordTable};

pub(crate) static TABLE: WordTable<15> = WordTable::sized::<{ catalogue::CHECKS_INDEX }>(
    &[(2, check_context as *const () as Word), (3, check_process as *const () as Word)],
    &[],
);

/// Writes 0 ("nothing wrong") for any context, including 0. The real driver leaves its second output untouched, and so does
/// this slot, which does not even declare it.
unsafe extern "C" fn check_context(_context: Handle, out: *mut u32) -> Status {
    guard(|| {
        // SAFETY: null or writable, which is what the runtime passes.
        *unsafe { out.as_mut() }.ok_or(status::INVALID_VALUE)? = 0;
        Ok(())
    })
}

extern "C" fn check_process() -> Status {
    status::SUCCESS
}

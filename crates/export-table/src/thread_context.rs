//! The table TLS (3 words): the calling thread's current context. cuBLASLt asks for it hundreds of times.

#![expect(unsafe_code, reason = "slots write through the raw pointers of C callers")]

use crate::catalogue;
use crate::facts::{Handle, facts};
use crate::ffi::{Status, guard, status};
use crate::table::{Word, WordTable};

pub(crate) static TABLE: WordTable<3> =
    WordTable::sized::<{ catalogue::THREAD_CONTEXT_INDEX }>(&[(2, current as *const () as Word)], &[]);

/// Writes the current context; none is 0 with success.
unsafe extern "C" fn current(out: *mut Handle) -> Status {
    guard(|| {
        // SAFETY: null or writable, which is what callers of the slot pass.
        let out = unsafe { out.as_mut() }.ok_or(status::INVALID_VALUE)?;
        *out = facts()?.current_context();
        Ok(())
    })
}

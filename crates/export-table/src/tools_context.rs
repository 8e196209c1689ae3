//! The table TOOLS_CONTEXT (93 words): queries of cuBLAS, cuBLASLt and cuFFT about contexts and streams. Runtimes from 13.4
//! on only need the table to exist.
//!
//! | slot | what                                               |
//! |-----:|----------------------------------------------------|
//! |    3 | device of a context                                |
//! |    4 | id of a context; context 0 has id 0                |
//! |   39 | id of the stream behind an object of slot 51       |
//! |   51 | object behind a stream, never equal to the handle  |

#![expect(unsafe_code, reason = "slots write through the raw pointers of C callers")]

use crate::catalogue;
use crate::facts::{Handle, facts};
use crate::ffi::{Status, guard, status};
use crate::table::{Word, WordTable};

pub(crate) static TABLE: WordTable<93> = WordTable::sized::<{ catalogue::TOOLS_CONTEXT_INDEX }>(
    &[
        (3, context_device as *const () as Word),
        (4, context_id as *const () as Word),
        (39, stream_id as *const () as Word),
        (51, stream_object as *const () as Word),
    ],
    &[91],
);

unsafe extern "C" fn context_device(context: Handle, out: *mut i32) -> Status {
    // SAFETY: null or writable, which is what callers of the slot pass.
    guard(|| unsafe { write(out, || facts()?.context_device(context)) })
}

unsafe extern "C" fn context_id(context: Handle, out: *mut u64) -> Status {
    // SAFETY: null or writable, which is what callers of the slot pass.
    guard(|| unsafe { write(out, || if context == 0 { Ok(0) } else { facts()?.context_id(context) }) })
}

unsafe extern "C" fn stream_object(context: Handle, stream: Handle, out: *mut Handle, per_thread: i32) -> Status {
    // SAFETY: null or writable, which is what callers of the slot pass.
    guard(|| unsafe { write(out, || facts()?.stream_object(context, stream, per_thread != 0)) })
}

unsafe extern "C" fn stream_id(context: Handle, object: Handle, out: *mut u64) -> Status {
    // SAFETY: null or writable, which is what callers of the slot pass.
    guard(|| unsafe { write(out, || facts()?.stream_id(context, object)) })
}

/// Writes `value` to `out`; writes nothing on any error.
///
/// # Safety
///
/// `out` is null or writable.
unsafe fn write<T>(out: *mut T, value: impl FnOnce() -> Result<T, Status>) -> Result<(), Status> {
    if out.is_null() {
        return Err(status::INVALID_VALUE);
    }
    let value = value()?;
    // SAFETY: writable, by this function's contract; null was refused above.
    unsafe { out.write(value) };
    Ok(())
}

//! How the process ends.

#![expect(unsafe_code, reason = "leaving the process without running exit handlers has no safe interface")]

/// Exit status of a session that its program broke.
pub(crate) const BROKEN_SESSION_STATUS: i32 = 1;

/// Exits at once, without running exit handlers: the driver's would wait for kernels that no process wants any more.
pub(crate) fn leave(code: i32) -> ! {
    // SAFETY: `_exit` ends the process; none of its code runs afterwards.
    unsafe { libc::_exit(code) }
}

//! The buffers of C's streams, in which a driver prints.

#![expect(unsafe_code, reason = "calls the C library")]

unsafe extern "C" {
    static stdout: *mut libc::FILE;
    static stderr: *mut libc::FILE;
    /// Bytes in a stream's buffer that have not been written (`stdio_ext.h`).
    fn __fpending(stream: *mut libc::FILE) -> libc::size_t;
}

/// Whether the standard streams have written all they were given.
pub(crate) fn are_empty() -> bool {
    // SAFETY: both are set by the C library before any code of ours runs. The function reads two words of each; a thread that
    // prints meanwhile is not one whose output any thread waits for yet.
    unsafe { __fpending(stdout) == 0 && __fpending(stderr) == 0 }
}

/// Has every stream write what it was given.
pub(crate) fn flush() {
    // SAFETY: with a null argument `fflush` flushes every open stream of C and touches no memory of ours.
    unsafe { libc::fflush(std::ptr::null_mut()) };
}

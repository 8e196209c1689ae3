//! The buffers of C's streams, to which a driver prints.

#![expect(unsafe_code, reason = "calls the C library")]

unsafe extern "C" {
    static stdout: *mut libc::FILE;
    static stderr: *mut libc::FILE;
    /// Bytes in a stream's buffer that have not been written (`stdio_ext.h`).
    fn __fpending(stream: *mut libc::FILE) -> libc::size_t;
}

/// Returns whether the standard streams have written everything in their buffers.
pub(crate) fn are_empty() -> bool {
    // SAFETY: the C library sets both before any code of this process runs. The function reads two words of each; no thread
    // waits yet for the output of a thread that prints meanwhile.
    unsafe { __fpending(stdout) == 0 && __fpending(stderr) == 0 }
}

/// Flushes every stream.
pub(crate) fn flush() {
    // SAFETY: with a null argument `fflush` flushes every open stream of C and touches no memory of Rust.
    unsafe { libc::fflush(std::ptr::null_mut()) };
}

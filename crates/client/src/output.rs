//! Output for the user: from the device, and the shim's own few lines.
//!
//! Device `printf` text arrives with replies. It is written through the C library's `stdout`. So it stays in order with the
//! program's own output, buffered or not.
#![expect(unsafe_code, reason = "stdout and stderr of the C library are reached through its own functions")]

use std::ffi::c_void;
use std::fmt::Display;
use std::io::{self, Write};

unsafe extern "C" {
    static stdout: *mut libc::FILE;
    static stderr: *mut libc::FILE;
}

/// Writes a line of the shim's own on stderr, in one piece. A closed stderr is not an error.
pub fn report(line: impl Display) {
    let _ = io::stderr().write_all(format!("katydid: {line}\n").as_bytes());
}

/// Writes the output that a reply carried. The program sees it before the call returns.
pub fn write(to_stdout: &[u8], to_stderr: &[u8]) {
    // SAFETY: both streams are set up by the C library before any code of the program runs.
    unsafe {
        put(stdout, to_stdout);
        put(stderr, to_stderr);
    }
}

/// # Safety
///
/// `stream` is an open stream of the C library.
unsafe fn put(stream: *mut libc::FILE, bytes: &[u8]) {
    if !bytes.is_empty() {
        // SAFETY: the stream is open by the contract above; the slice is valid for its length.
        unsafe { libc::fwrite(bytes.as_ptr().cast::<c_void>(), 1, bytes.len(), stream) };
    }
}

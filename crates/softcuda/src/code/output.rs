//! Output of kernels. It is buffered in order, and written to the C streams of the process at synchronisation points. So it mixes
//! with the program's own output as on a GPU.

#![expect(unsafe_code, reason = "writes through the C library's streams")]

use std::sync::{Mutex, PoisonError};

/// Buffered bytes beyond which output is written early. Nothing is lost, and memory stays bounded.
const MAX_BUFFERED_BYTES: usize = 1 << 20;

/// The C stream of a piece of output.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OutputStream {
    Stdout,
    Stderr,
}

/// Output of one context.
pub(crate) struct ContextOutput(Mutex<Pending>);

/// Pieces in the order of their output, and their total size.
#[derive(Default)]
struct Pending {
    bytes: usize,
    pieces: Vec<(OutputStream, Vec<u8>)>,
}

impl ContextOutput {
    /// Returns an empty buffer.
    pub(crate) fn new() -> Self {
        Self(Mutex::default())
    }

    /// Buffers the output of `printf`.
    pub(crate) fn print(&self, text: &[u8]) {
        self.keep(OutputStream::Stdout, text);
    }

    /// Buffers the line of a failed assertion.
    pub(crate) fn complain(&self, text: &str) {
        self.keep(OutputStream::Stderr, text.as_bytes());
    }

    /// Adds text to the last piece, or starts a piece for another stream.
    fn keep(&self, to: OutputStream, text: &[u8]) {
        let mut pending = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        pending.bytes += text.len();
        match pending.pieces.last_mut() {
            Some((last, piece)) if *last == to => piece.extend_from_slice(text),
            _ => pending.pieces.push((to, text.to_vec())),
        }
        if pending.bytes > MAX_BUFFERED_BYTES {
            write_all(&mut pending);
        }
    }

    /// Writes everything buffered. The C library's own buffers decide when it leaves the process.
    pub(crate) fn flush(&self) {
        let mut pending = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if pending.bytes > 0 {
            write_all(&mut pending);
        }
    }
}

unsafe extern "C" {
    static stdout: *mut libc::FILE;
    static stderr: *mut libc::FILE;
}

/// Passes every piece to its stream. A stream that fails loses its text, as it would lose the program's own output.
fn write_all(pending: &mut Pending) {
    for (to, piece) in pending.pieces.drain(..) {
        // SAFETY: both are set by the C library before any code of the library runs, and programs do not write to them.
        let stream = unsafe { if to == OutputStream::Stdout { stdout } else { stderr } };
        // SAFETY: the piece lives during the call, and the stream locks itself.
        unsafe { libc::fwrite(piece.as_ptr().cast(), 1, piece.len(), stream) };
    }
    pending.bytes = 0;
}

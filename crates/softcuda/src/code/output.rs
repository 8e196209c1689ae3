//! What kernels print: kept in order, and written to the C streams of the process at synchronisation points, so that
//! it mixes with the program's own output as it does on a GPU.

#![expect(unsafe_code, reason = "writes through the C library's streams")]

use std::sync::{Mutex, PoisonError};

/// More than this is written early: nothing is lost, and memory stays bounded.
const MAX_BUFFERED_BYTES: usize = 1 << 20;

/// Which stream a piece goes to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OutputStream {
    Stdout,
    Stderr,
}

/// Output of one context.
pub(crate) struct ContextOutput(Mutex<Pending>);

/// Pieces in the order they were printed, and their size in all.
#[derive(Default)]
struct Pending {
    bytes: usize,
    pieces: Vec<(OutputStream, Vec<u8>)>,
}

impl ContextOutput {
    /// A buffer in which nothing was printed.
    pub(crate) fn new() -> Self {
        Self(Mutex::default())
    }

    /// Keeps what `printf` made.
    pub(crate) fn print(&self, text: &[u8]) {
        self.keep(OutputStream::Stdout, text);
    }

    /// Keeps the line of a failed assertion.
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

    /// Writes everything kept. The C library's own buffers decide when it leaves the process.
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

/// Hands every piece to its stream. A stream that fails loses its text, as the program's own output would be lost.
fn write_all(pending: &mut Pending) {
    for (to, piece) in pending.pieces.drain(..) {
        // SAFETY: both are set by the C library before any code of the library runs, and programs do not write to them.
        let stream = unsafe { if to == OutputStream::Stdout { stdout } else { stderr } };
        // SAFETY: the piece lives during the call, and the stream locks itself.
        unsafe { libc::fwrite(piece.as_ptr().cast(), 1, piece.len(), stream) };
    }
    pending.bytes = 0;
}

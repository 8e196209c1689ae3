//! Text that the driver prints: device `printf`, asserts, its own messages.
//!
//! A driver writes to descriptors 1 and 2 of its process. A worker points both at memory files. New text goes with the next
//! reply of a synchronizing call; the program's side prints it. Consumed bytes are returned to the system, so that a kernel
//! that prints much does not fill memory.
//!
//! Most synchronizing calls have printed nothing, and find that out without a system call: in the buffers of C's streams and
//! in a window on each file. A text of only NULs is not seen there, and comes with the next text.

#![expect(unsafe_code, reason = "replacing descriptors 1 and 2 has no safe interface")]

use std::fs::File;
use std::io::{self, Seek as _};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, memfd_create};

use crate::streams;
use crate::window::Window;

/// Consumed bytes are returned to the system in steps of this many.
const PUNCH_STEP_BYTES: u64 = 1 << 20;

/// Text taken for one reply.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct PrintedText {
    /// Bytes for the program's standard output.
    pub stdout: Vec<u8>,
    /// Bytes for the program's standard error.
    pub stderr: Vec<u8>,
}

/// A memory file, and how far it was read.
#[derive(Debug)]
struct OutputFile {
    file: File,
    read: u64,
    given_back: u64,
    /// None if the system refuses one.
    window: Option<Window>,
}

impl OutputFile {
    fn new(name: &str) -> io::Result<Self> {
        let file = File::from(memfd_create(name, MemfdFlags::CLOEXEC)?);
        let window = Window::open(&file);
        Ok(Self { file, read: 0, given_back: 0, window })
    }

    /// Returns all bytes written so far. Writers share the open file, and move its position.
    fn written(&self) -> u64 {
        // A memory file always has a position; if not, printing nothing loses no text.
        (&self.file).stream_position().unwrap_or(self.read)
    }

    /// Returns whether nothing was written since, as far as the window shows.
    fn is_blank(&self) -> bool {
        self.window.as_ref().is_some_and(|window| window.is_blank_at(self.read))
    }

    /// Returns text written since the last take, and keeps it.
    fn unread(&self) -> Vec<u8> {
        let written = self.written();
        let mut text = vec![0; usize::try_from(written.saturating_sub(self.read)).unwrap_or(0)];
        if self.file.read_exact_at(&mut text, self.read).is_err() {
            text.clear();
        }
        text
    }

    /// Takes text written since, at most `max_bytes` bytes; the rest waits.
    fn take(&mut self, max_bytes: usize) -> Vec<u8> {
        let written = self.written();
        let length = usize::try_from(written.saturating_sub(self.read)).unwrap_or(max_bytes).min(max_bytes);
        let mut text = vec![0; length];
        if length == 0 || self.file.read_exact_at(&mut text, self.read).is_err() {
            return Vec::new();
        }
        self.read += length as u64;
        self.window = self.window.take().and_then(|window| window.moved(&self.file, self.read));
        self.give_back();
        text
    }

    /// Punches a hole over the read bytes, now and then.
    fn give_back(&mut self) {
        let whole = self.read - self.read % PUNCH_STEP_BYTES;
        if whole > self.given_back {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            // Without the hole the bytes stay until the session ends: a cost, not an error.
            let _ = fallocate(&self.file, flags, self.given_back, whole - self.given_back);
            self.given_back = whole;
        }
    }
}

/// Both streams of the driver, or nothing if output is not captured.
#[derive(Debug, Default)]
pub struct Capture {
    sources: Option<(OutputFile, OutputFile)>,
    /// Text printed before a restore, which is sent before any other.
    earlier: PrintedText,
}

impl Capture {
    /// Points descriptors 1 and 2 of this process at memory. The second value is the old descriptor 2, the worker's own
    /// output.
    ///
    /// # Errors
    ///
    /// The system refuses a descriptor or memory file.
    pub fn start() -> io::Result<(Self, OwnedFd)> {
        let real = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stderr(), 3)?;
        let sources = (OutputFile::new("device stdout")?, OutputFile::new("device stderr")?);
        redirect(&sources.0.file, 1)?;
        redirect(&sources.1.file, 2)?;
        Ok((Self { sources: Some(sources), earlier: PrintedText::default() }, real))
    }

    /// Returns printed text that was not taken, and keeps it.
    pub fn unread(&self) -> PrintedText {
        streams::flush();
        let mut all = self.earlier.clone();
        if let Some((stdout, stderr)) = &self.sources {
            all.stdout.append(&mut stdout.unread());
            all.stderr.append(&mut stderr.unread());
        }
        all
    }

    /// Puts the text of another worker's driver before any of this one's.
    pub fn begin_with(&mut self, printed: PrintedText) {
        self.earlier = printed;
    }

    /// Takes text printed since the last time, at most `max_bytes` bytes in all; the rest waits for the next reply.
    pub fn take(&mut self, max_bytes: usize) -> PrintedText {
        let mut stdout = cut(&mut self.earlier.stdout, max_bytes);
        let mut stderr = cut(&mut self.earlier.stderr, max_bytes - stdout.len());
        if let Some(sources) = &mut self.sources
            && self.earlier == PrintedText::default()
            && !(streams::are_empty() && sources.0.is_blank() && sources.1.is_blank())
        {
            streams::flush();
            let left = |stdout: &[u8], stderr: &[u8]| max_bytes - stdout.len() - stderr.len();
            stdout.append(&mut sources.0.take(left(&stdout, &stderr)));
            stderr.append(&mut sources.1.take(left(&stdout, &stderr)));
        }
        PrintedText { stdout, stderr }
    }
}

/// Removes and returns the first bytes of a text, at most `max_bytes`.
fn cut(text: &mut Vec<u8>, max_bytes: usize) -> Vec<u8> {
    let quiesce = text.split_off(max_bytes.min(text.len()));
    std::mem::replace(text, quiesce)
}

/// Makes descriptor `number` another name of `file`.
fn redirect(file: &File, number: i32) -> io::Result<()> {
    // SAFETY: `dup2` works on descriptor numbers; 1 and 2 belong to this process as a whole, and nothing in it holds
    // them as owned values.
    let result = unsafe { libc::dup2(file.as_raw_fd(), number) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// A capture of files that the test writes itself; the process's own descriptors stay.
    fn capture() -> (Capture, File, File) {
        let sources = (OutputFile::new("out").unwrap(), OutputFile::new("err").unwrap());
        let (out, err) = (sources.0.file.try_clone().unwrap(), sources.1.file.try_clone().unwrap());
        (Capture { sources: Some(sources), earlier: PrintedText::default() }, out, err)
    }

    #[test]
    fn each_byte_is_taken_once_and_in_order() {
        let (mut capture, mut out, mut err) = capture();
        out.write_all(b"one ").unwrap();
        err.write_all(b"assertion").unwrap();
        assert_eq!(capture.take(100), PrintedText { stdout: b"one ".into(), stderr: b"assertion".into() });
        out.write_all(b"two").unwrap();
        assert_eq!(capture.take(100).stdout, b"two");
        assert_eq!(capture.take(100), PrintedText::default());
    }

    #[test]
    fn unread_output_of_the_previous_worker_comes_first() {
        let (mut before, mut out, mut err) = capture();
        out.write_all(b"abc").unwrap();
        err.write_all(b"x").unwrap();
        let (mut capture, mut out, _err) = self::capture();
        assert_eq!(before.unread(), before.unread());
        capture.begin_with(before.unread());
        out.write_all(b"new").unwrap();
        assert_eq!(capture.unread().stdout, b"abcnew");
        assert_eq!(capture.take(2).stdout, b"ab");
        // All printed text, as a program expects after a call that waits for the GPU.
        assert_eq!(capture.take(100), PrintedText { stdout: b"cnew".into(), stderr: b"x".into() });
        assert_eq!(before.take(100).stdout, b"abc");
    }

    #[test]
    fn output_beyond_the_limit_stays_queued() {
        let (mut capture, mut out, mut err) = capture();
        out.write_all(b"abcdef").unwrap();
        err.write_all(b"xyz").unwrap();
        assert_eq!(capture.take(4), PrintedText { stdout: b"abcd".into(), stderr: Vec::new() });
        assert_eq!(capture.take(4), PrintedText { stdout: b"ef".into(), stderr: b"xy".into() });
        assert_eq!(capture.take(4).stderr, b"z");
    }

    #[test]
    fn a_text_that_cannot_be_seen_comes_with_the_next_one() {
        let (mut capture, mut out, mut err) = capture();
        out.write_all(b"\0\0").unwrap();
        assert_eq!(capture.take(100), PrintedText::default());
        assert_eq!(capture.unread().stdout, b"\0\0");
        err.write_all(b"x").unwrap();
        assert_eq!(capture.take(100), PrintedText { stdout: b"\0\0".into(), stderr: b"x".into() });
    }

    #[test]
    fn nothing_is_missed_however_much_is_printed() {
        let (mut capture, mut out, _err) = capture();
        let mut length = 1;
        for byte in (b'a'..=b'z').cycle().take(300) {
            let text = vec![byte; length];
            out.write_all(&text).unwrap();
            assert!(capture.take(usize::MAX).stdout == text, "{length} bytes");
            assert_eq!(capture.take(usize::MAX), PrintedText::default());
            length = length * 7 % 65_537;
        }
    }

    #[test]
    fn consumed_bytes_are_given_back() {
        let (mut capture, mut out, _err) = capture();
        let text = vec![b'x'; 3 << 20];
        out.write_all(&text).unwrap();
        assert_eq!(capture.take(usize::MAX).stdout.len(), text.len());
        let blocks = std::os::unix::fs::MetadataExt::blocks(&out.metadata().unwrap());
        assert_eq!(blocks, 0);
    }

    #[test]
    fn without_a_capture_nothing_is_printed() {
        assert_eq!(Capture::default().take(100), PrintedText::default());
    }
}

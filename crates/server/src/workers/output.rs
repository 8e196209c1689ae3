//! A worker's standard error: a pipe, which its supervisor reads.
//!
//! Native code of a tenant may write anything there. So the worker gets no descriptor of the server's own. Its lines are bounded
//! and name their worker (`report`), and they are read at a limited rate.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::io::{Errno, read};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::report::Reporter;

/// Longest line in bytes. A longer one comes in pieces. With its prefix, it is no longer than the server's own lines.
const MAX_LINE_BYTES: usize = 1000;
/// Left-out lines that are kept: the last ones say why a worker ends.
const MAX_LAST_WORDS_LINES: usize = 4;
/// Bytes of one read.
const OUTPUT_PIECE_BYTES: usize = 16 << 10;
/// Bytes of one worker that are read in an interval. A worker that writes more waits.
const MAX_INTERVAL_BYTES: usize = 1 << 20;
const OUTPUT_REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// The server's end of the pipe.
#[derive(Debug)]
pub(crate) struct WorkerOutput {
    /// None once all writers have closed theirs.
    pipe: Option<OwnedFd>,
    /// Process id of the worker.
    worker: u32,
    /// The beginning of an unfinished line.
    begun: Vec<u8>,
    /// Lines left out since the last one that was written.
    last: VecDeque<Vec<u8>>,
    /// Start of the interval, and the bytes read since.
    in_interval: (Instant, usize),
}

/// Creates the pipe: a nonblocking reader, and a writer that blocks.
pub(crate) fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
    // The flag affects only this end.
    rustix::io::ioctl_fionbio(&reader, true)?;
    Ok((reader, writer))
}

impl WorkerOutput {
    pub(crate) fn new(pipe: OwnedFd, worker: u32) -> Self {
        Self { pipe: Some(pipe), worker, begun: Vec::new(), last: VecDeque::new(), in_interval: (Instant::now(), 0) }
    }

    /// Returns a descriptor that is readable when there is output; none while reading pauses or is over.
    pub(crate) fn source(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.as_ref().filter(|_| self.rests_until().is_none()).map(AsFd::as_fd)
    }

    /// Returns when reading resumes, if enough was read for now.
    pub(crate) fn rests_until(&self) -> Option<Instant> {
        let (since, bytes) = self.in_interval;
        Some(since + OUTPUT_REPORT_INTERVAL).filter(|until| bytes >= MAX_INTERVAL_BYTES && *until > Instant::now())
    }

    /// Reads some output, and reports its lines.
    pub(crate) fn read(&mut self, reporter: &Reporter) {
        self.read_piece(reporter);
    }

    /// Reads the remaining output of a worker that has ended. Its children may live on and write for ever.
    pub(crate) fn finish(&mut self, reporter: &Reporter) {
        for _ in 0..MAX_INTERVAL_BYTES / OUTPUT_PIECE_BYTES {
            if !self.read_piece(reporter) {
                break;
            }
        }
        self.pipe = None;
        if !self.begun.is_empty() {
            self.report(reporter);
        }
        reporter.last_of_worker(self.worker, self.last.make_contiguous());
    }

    /// Reads once. Returns whether there may be more.
    fn read_piece(&mut self, reporter: &Reporter) -> bool {
        let Some(pipe) = &self.pipe else { return false };
        let mut piece = [0; OUTPUT_PIECE_BYTES];
        match read(pipe, &mut piece) {
            Ok(length @ 1..) => {
                self.count(length);
                self.receive(&piece[..length.min(OUTPUT_PIECE_BYTES)], reporter);
                true
            }
            Err(Errno::INTR) => true,
            Err(Errno::AGAIN) => false,
            Ok(_) | Err(_) => {
                self.pipe = None;
                false
            }
        }
    }

    fn count(&mut self, bytes: usize) {
        let now = Instant::now();
        if now.saturating_duration_since(self.in_interval.0) >= OUTPUT_REPORT_INTERVAL {
            self.in_interval = (now, 0);
        }
        self.in_interval.1 += bytes;
    }

    fn receive(&mut self, bytes: &[u8], reporter: &Reporter) {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (text, is_whole) = part.strip_suffix(b"\n").map_or((part, false), |text| (text, true));
            let mut text = text;
            while self.begun.len() + text.len() > MAX_LINE_BYTES {
                let (piece, rest) = text.split_at(MAX_LINE_BYTES - self.begun.len());
                self.begun.extend_from_slice(piece);
                self.report(reporter);
                text = rest;
            }
            self.begun.extend_from_slice(text);
            if is_whole {
                self.report(reporter);
            }
        }
    }

    fn report(&mut self, reporter: &Reporter) {
        let line = std::mem::take(&mut self.begun);
        if reporter.of_worker(self.worker, &line) {
            self.last.clear();
        } else {
            if self.last.len() == MAX_LAST_WORDS_LINES {
                self.last.pop_front();
            }
            self.last.push_back(line);
        }
    }
}

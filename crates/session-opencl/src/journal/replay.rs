//! State of a session while it is rebuilt.

use std::collections::HashSet;

use katydid_opencl_sys::Code;

/// State of a session while it is rebuilt.
#[derive(Debug)]
pub(crate) struct Replay {
    /// Whether a replay is running: replies are not sent.
    pub(crate) is_on: bool,
    /// The result of the current frame.
    pub(crate) outcome: Code,
    /// Buffers whose contents are in the image.
    pub(crate) filled: HashSet<u32>,
    /// The end that shared virtual memory is to have, if one is wanted.
    pub(crate) svm_end: Option<u64>,
}

impl Replay {
    /// Returns whether the image has contents of this buffer.
    pub(crate) fn has(&self, buffer: u64) -> bool {
        u32::try_from(buffer).is_ok_and(|buffer| self.filled.contains(&buffer))
    }
}

impl Default for Replay {
    fn default() -> Self {
        Self { is_on: false, outcome: Code::SUCCESS, filled: HashSet::new(), svm_end: None }
    }
}

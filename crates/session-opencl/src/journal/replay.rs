//! What a session knows while it is rebuilt.

use std::collections::HashSet;

use katydid_opencl_sys::Code;

/// What a session knows while it is rebuilt.
#[derive(Debug)]
pub(crate) struct Replay {
    /// Whether a replay is under way: replies are not sent.
    pub(crate) is_on: bool,
    /// How the current frame came out.
    pub(crate) outcome: Code,
    /// Buffers whose contents the image has.
    pub(crate) filled: HashSet<u32>,
    /// Where shared virtual memory is to end, if that is wanted.
    pub(crate) svm_end: Option<u64>,
}

impl Replay {
    /// Whether the image has contents of this buffer.
    pub(crate) fn has(&self, buffer: u64) -> bool {
        u32::try_from(buffer).is_ok_and(|buffer| self.filled.contains(&buffer))
    }
}

impl Default for Replay {
    fn default() -> Self {
        Self { is_on: false, outcome: Code::SUCCESS, filled: HashSet::new(), svm_end: None }
    }
}

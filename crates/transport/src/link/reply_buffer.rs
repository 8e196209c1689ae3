//! The destination of a bulk reply's data: it goes straight from the socket into the program's own memory, whichever waiting
//! thread reads it.

#![expect(unsafe_code, reason = "fills memory that the caller vouches for")]

use std::slice;

use katydid_wire::frame::ReplyHead;

/// Memory for the bytes of a reply that follow its first `skip` ones.
///
/// The rule: no thread writes there before the request is sent, nor after the call that uses it has returned.
#[derive(Debug, Clone, Copy)]
pub struct ReplyBuffer {
    at: *mut u8,
    size: usize,
    skip: usize,
}

// SAFETY: `new`'s contract holds for every thread that writes, as long as the call lasts.
unsafe impl Send for ReplyBuffer {}

impl ReplyBuffer {
    /// Describes the `size` bytes at `at`, for what follows the first `skip` bytes of the reply's payload.
    ///
    /// # Safety
    ///
    /// The bytes are writable, and no other code uses them, until the call that gets this value has returned.
    #[must_use]
    pub unsafe fn new(at: *mut u8, size: usize, skip: usize) -> Self {
        Self { at, size, skip }
    }

    /// Returns whether a reply of `length` bytes behind its head is the expected one. Others, mostly those of failed calls, are
    /// read as usual.
    pub(crate) fn fits(&self, head: &ReplyHead, length: usize) -> bool {
        head.status == 0 && length.checked_sub(head.output as usize) == self.skip.checked_add(self.size)
    }

    /// Returns the number of bytes in front of the data.
    pub(crate) fn skip(&self) -> usize {
        self.skip
    }

    /// Returns the number of data bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }

    /// Copies data to its place, behind `done` bytes that are there already.
    pub(crate) fn write(&self, done: usize, data: &[u8]) {
        let data = &data[..data.len().min(self.size.saturating_sub(done))];
        // SAFETY: within the `size` bytes that `new` was promised; `data` is memory of this crate.
        unsafe { self.at.add(done).copy_from_nonoverlapping(data.as_ptr(), data.len()) };
    }

    /// Returns the bytes still missing after the first `done`.
    ///
    /// # Safety
    ///
    /// The caller only writes there, and drops the slice before the call that uses this buffer has returned.
    pub(crate) unsafe fn remaining(&mut self, done: usize) -> &mut [u8] {
        let done = done.min(self.size);
        // SAFETY: within the `size` bytes that `new` was promised; they are bytes, so whatever they hold is valid.
        unsafe { slice::from_raw_parts_mut(self.at.add(done), self.size - done) }
    }
}

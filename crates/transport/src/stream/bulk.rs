//! A worker's memory for the bulk of a stream link: buffers at fixed addresses, which a driver can register. So the GPU can copy
//! from and to one buffer while others are received or sent.
//!
//! A buffer has one owner at a time and is free again when the owner drops it. The GPU may still be reading it then. So the owner
//! that starts such a read sets the buffer's word first, and the GPU writes 0 there at the end. Until then no thread gets the
//! buffer. A GPU wakes no thread, so a thread that needs a buffer polls for one. It does without one after a while: a program may
//! hold its stream for as long as it likes.

#![expect(unsafe_code, reason = "hands out memory of a mapping, a part to each owner")]

use std::io;
use std::ptr;
use std::slice;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use katydid_wire::PAGE_BYTES;
use katydid_wire::frame::MAX_FRAME_BYTES;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::shm::layout::BULK_ADDRESS;

/// Number of buffers of a link: together as much memory as the staging pieces have.
pub const BUFFER_COUNT: usize = 64;
/// Bytes of a buffer: any payload fits.
pub const BUFFER_BYTES: usize = MAX_FRAME_BYTES.next_multiple_of(PAGE_BYTES);
/// Distance between two words, so that the GPU's writes do not share a cache line.
const BUSY_WORD_STRIDE_BYTES: usize = 64;
/// Bytes of the words' page and the buffers behind it.
const BUFFERS_BYTES: usize = PAGE_BYTES + BUFFER_COUNT * BUFFER_BYTES;
/// How often a thread polls for a buffer. A GPU reads one in some 20 µs.
const BUFFER_POLL_INTERVAL: Duration = Duration::from_micros(20);
/// How long a thread polls for a buffer.
const BUFFER_WAIT_LIMIT: Duration = Duration::from_millis(2);

const _: () = assert!(BUFFER_COUNT * BUSY_WORD_STRIDE_BYTES <= PAGE_BYTES);

/// The buffers of a link, and their words. Pages that were never used take no memory.
#[derive(Debug)]
pub struct Buffers {
    base: *mut u8,
    /// Numbers of free buffers; the most recently used are last.
    free: Mutex<Vec<usize>>,
}

// SAFETY: the mapping belongs to this value alone; a buffer's bytes are its owner's, and words are atomics.
unsafe impl Send for Buffers {}
// SAFETY: as above; a lock protects the list of free buffers.
unsafe impl Sync for Buffers {}

impl Buffers {
    /// Makes the memory.
    ///
    /// # Errors
    ///
    /// Error that the system returned.
    pub fn new() -> io::Result<Arc<Self>> {
        let address = ptr::with_exposed_provenance_mut(BULK_ADDRESS);
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a new mapping; where memory is already, the system chooses another place.
        let base = unsafe { mmap_anonymous(address, BUFFERS_BYTES, access, flags) }?;
        Ok(Arc::new(Self { base: base.cast(), free: Mutex::new((0..BUFFER_COUNT).rev().collect()) }))
    }

    /// Takes a buffer that neither a thread nor the GPU uses: the most recently used one, which is most likely in the cache.
    #[must_use]
    pub fn try_take(self: &Arc<Self>) -> Option<Buffer> {
        let mut free = self.free();
        let at = free.iter().rposition(|number| self.word_at(*number).load(Ordering::Acquire) == 0)?;
        let number = free.remove(at);
        Some(Buffer { buffers: Arc::clone(self), number, length: 0 })
    }

    /// Takes a free buffer. Polls for up to two milliseconds.
    pub(crate) fn take(self: &Arc<Self>) -> Option<Buffer> {
        let start = Instant::now();
        loop {
            if let Some(buffer) = self.try_take() {
                return Some(buffer);
            }
            if start.elapsed() >= BUFFER_WAIT_LIMIT {
                return None;
            }
            std::thread::sleep(BUFFER_POLL_INTERVAL);
        }
    }

    /// Returns the start of the [`BUFFER_BYTES`] bytes of buffer `number`, which is below [`BUFFER_COUNT`], for the driver.
    #[must_use]
    pub fn pointer(&self, number: usize) -> *mut u8 {
        assert!(number < BUFFER_COUNT, "a buffer's number");
        self.base.wrapping_add(PAGE_BYTES + number * BUFFER_BYTES)
    }

    /// Returns the address of a buffer's word, inside [`Buffers::busy_words`]. Any value but 0 keeps the buffer from being taken.
    #[must_use]
    pub fn word(&self, number: usize) -> *mut u32 {
        self.word_at(number).as_ptr()
    }

    /// Returns start and length of the page of all words, for the driver.
    #[must_use]
    pub fn busy_words(&self) -> (*mut u8, usize) {
        (self.base, PAGE_BYTES)
    }

    fn word_at(&self, number: usize) -> &AtomicU32 {
        assert!(number < BUFFER_COUNT, "a buffer's number");
        // SAFETY: in bounds by the assertion, and aligned; the mapping lives as long as the borrow of `self`, and every access
        // but the GPU uses words as atomics.
        unsafe { AtomicU32::from_ptr(self.base.wrapping_add(number * BUSY_WORD_STRIDE_BYTES).cast()) }
    }

    fn free(&self) -> MutexGuard<'_, Vec<usize>> {
        // Code under this lock leaves the list whole.
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and buffers keep it alive. An error would mean that it is gone already.
        let _ = unsafe { munmap(self.base.cast(), BUFFERS_BYTES) };
    }
}

/// A buffer. It belongs to its owner until dropped.
#[derive(Debug)]
pub struct Buffer {
    buffers: Arc<Buffers>,
    number: usize,
    length: usize,
}

impl Buffer {
    /// Returns the buffer's number, below [`BUFFER_COUNT`].
    #[must_use]
    pub fn number(&self) -> usize {
        self.number
    }

    /// Returns the bytes that were received into the buffer.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the first `length` bytes of this owner's buffer; the owner waits for other writers first.
        unsafe { slice::from_raw_parts(self.buffers.pointer(self.number), self.length) }
    }

    /// Sets its length, and returns the bytes with arbitrary contents; none if the buffer is smaller.
    pub fn resized(&mut self, length: usize) -> Option<&mut [u8]> {
        self.length = Some(length).filter(|length| *length <= BUFFER_BYTES)?;
        // SAFETY: within this owner's buffer, by the check above; they are bytes, so whatever they hold is valid.
        Some(unsafe { slice::from_raw_parts_mut(self.buffers.pointer(self.number), length) })
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.buffers.free().push(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(buffers: &Buffers, number: usize) -> &AtomicU32 {
        buffers.word_at(number)
    }

    #[test]
    fn a_buffer_has_one_owner_at_a_time_and_they_run_out() {
        let buffers = Buffers::new().unwrap();
        let mut all_buffers: Vec<Buffer> = std::iter::from_fn(|| buffers.try_take()).collect();
        assert_eq!((all_buffers.len(), buffers.take().is_some()), (BUFFER_COUNT, false));
        for (at, buffer) in all_buffers.iter_mut().enumerate() {
            buffer.resized(BUFFER_BYTES).unwrap().fill(at as u8);
        }
        assert!(all_buffers.iter().enumerate().all(|(at, buffer)| buffer.bytes().iter().all(|byte| *byte == at as u8)));
        let number = all_buffers.swap_remove(5).number();
        assert_eq!(buffers.try_take().map(|buffer| buffer.number()), Some(number));
    }

    #[test]
    fn a_buffer_that_the_gpu_reads_is_not_reused() {
        let buffers = Buffers::new().unwrap();
        let buffer = buffers.try_take().unwrap();
        let number = buffer.number();
        word(&buffers, number).store(1, Ordering::Release);
        drop(buffer);
        let other_buffers: Vec<Buffer> = std::iter::from_fn(|| buffers.try_take()).collect();
        assert!(other_buffers.len() == BUFFER_COUNT - 1 && other_buffers.iter().all(|other| other.number() != number));
        word(&buffers, number).store(0, Ordering::Release);
        assert_eq!(buffers.try_take().map(|buffer| buffer.number()), Some(number));
    }

    #[test]
    fn a_buffer_holds_any_payload_and_no_more() {
        let buffers = Buffers::new().unwrap();
        let mut buffer = buffers.try_take().unwrap();
        assert!(buffer.resized(MAX_FRAME_BYTES).is_some() && buffer.resized(BUFFER_BYTES + 1).is_none());
        assert!(
            buffer.bytes().len() == MAX_FRAME_BYTES
                && buffers.pointer(buffer.number()).addr().is_multiple_of(PAGE_BYTES)
        );
        let (start, length) = buffers.busy_words();
        let word_page = start.addr()..start.addr() + length;
        assert!((0..BUFFER_COUNT).all(|number| word_page.contains(&buffers.word(number).addr())));
    }
}

//! Memory that the program and its worker both have, at the same addresses: buffers of `CL_MEM_ALLOC_HOST_PTR`.
//!
//! On a processor such a buffer lies there on both sides, so that a map copies nothing. Elsewhere the driver copies from the
//! device right into the mapped memory, and back. A block is used again when the driver has destroyed its buffer, which is
//! after all commands that use it: its callback says so. That of an image whose commands are known to have ended is used again
//! at once, since the worker executes what is sent later after the image's release.
#![expect(unsafe_code, reason = "maps memory at the addresses that both sides agreed on")]

use std::ops::Range;
use std::sync::OnceLock;

use katydid_arena::{Reservation, ReserveError};
use katydid_client::connect::PinnedMemory;
use katydid_client::memory::shared_pages;
use katydid_client::memory::{Arena, Backing};
use katydid_opencl_sys::Code;

use crate::process::session;

/// Blocks are whole pages, which are aligned as any element wants.
const PAGE_BYTES: u64 = katydid_wire::PAGE_BYTES as u64;
/// Bytes that stay for other blocks when blocks are freed: fresh pages cost more than what is copied to them.
const MAX_UNUSED_BYTES: u64 = 64 << 20;

/// The arena of this process; none on streams.
static HOST_MEMORY: OnceLock<HostMemory> = OnceLock::new();

/// The arena, and where it begins.
pub(crate) struct HostMemory {
    arena: Arena,
    start: u64,
    /// Keeps the addresses for as long as the process lives.
    _range: Reservation,
}

/// Bytes of the arena, for one buffer. Freed by [`Block::free`] alone: commands may use it when its handle is gone.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) address: usize,
    size: u64,
}

/// How the arena's memory grows: the worker sees the same file.
struct File {
    start: u64,
}

impl Backing for File {
    type Code = Code;

    fn grow(&self, range: &Range<u64>) -> Result<(), Code> {
        session::lengthen_pinned(range.end - self.start)
    }

    fn shrink(&self, range: &Range<u64>) -> Result<(), Code> {
        // SAFETY: a whole piece of the arena's mapping, in which there is no block, so no code refers to it.
        unsafe { shared_pages::remove(range) };
        Ok(())
    }

    fn synchronize(&self) -> Result<u64, Code> {
        // No block is freed before its last command has ended.
        Ok(0)
    }
}

impl HostMemory {
    /// Maps all of the memory.
    pub(crate) fn new((range, memory): PinnedMemory) -> Result<Self, ReserveError> {
        shared_pages::map_all(&range, &memory)?;
        let Range { start, end } = range.range();
        Ok(Self { arena: Arena::new(start..end, 0), start, _range: range })
    }

    /// Makes it the arena of this process.
    pub(crate) fn install(self) {
        // There is one session, so this is the first.
        let _ = HOST_MEMORY.set(self);
    }
}

/// Whether the worker shares memory with this process.
pub(crate) fn is_there() -> bool {
    HOST_MEMORY.get().is_some()
}

/// Memory of zeros or of what a block before had in it; none if there is no room, or no such memory.
pub(crate) fn allocate(size: usize) -> Option<Block> {
    let memory = HOST_MEMORY.get()?;
    let pages = (size as u64).checked_next_multiple_of(PAGE_BYTES)?;
    let address = memory.arena.allocate(pages, PAGE_BYTES, &File { start: memory.start }).ok()?;
    Some(Block { address: address as usize, size: pages })
}

/// Gives what no block has back to the system: it need not be in the program's dump. Not while another thread is at work with it, for
/// which no thread waits here.
pub(crate) fn trim() {
    if let Some(memory) = HOST_MEMORY.get() {
        let _ = memory.arena.try_trim(&File { start: memory.start });
    }
}

impl Block {
    /// Bytes of its whole pages.
    pub(crate) fn size(&self) -> usize {
        self.size as usize
    }

    /// No thread uses it any more.
    pub(crate) fn free(self) {
        let Some(memory) = HOST_MEMORY.get() else { return };
        let _ = memory.arena.free(self.address as u64, 0);
        memory.arena.release_until(0);
        if memory.arena.unused_bytes() > MAX_UNUSED_BYTES {
            memory.arena.trim(&File { start: memory.start });
        }
    }
}

//! Memory shared by the program and its worker, at the same addresses: buffers of `CL_MEM_ALLOC_HOST_PTR`.
//!
//! On a processor such a buffer lies there on both sides, so a map copies nothing. Elsewhere the driver copies directly between
//! the device and the mapped memory. A block is reused when the driver's callback reports that its buffer is destroyed, after all
//! commands that use it. The block of an image whose commands have ended is reused at once: the worker executes later messages
//! after the image's release.
#![expect(unsafe_code, reason = "maps memory at the addresses that both sides agreed on")]

use std::ops::Range;
use std::sync::OnceLock;

use katydid_arena::{Reservation, ReserveError};
use katydid_client::connect::PinnedMemory;
use katydid_client::memory::shared_pages;
use katydid_client::memory::{Arena, Backing};
use katydid_opencl_sys::Code;

use crate::process::session;

/// Blocks are whole pages, whose alignment suits any element.
const PAGE_BYTES: u64 = katydid_wire::PAGE_BYTES as u64;
/// Bytes that freed blocks keep for later blocks: fresh pages cost more than the copies into them.
const MAX_UNUSED_BYTES: u64 = 64 << 20;

/// The arena of this process; unset on streams.
static HOST_MEMORY: OnceLock<HostMemory> = OnceLock::new();

/// The arena, and its first address.
pub(crate) struct HostMemory {
    arena: Arena,
    start: u64,
    /// Reserves the addresses for as long as the process lives.
    _range: Reservation,
}

/// A block of the arena for one buffer. Only [`Block::free`] frees it: commands may use it after its handle is gone.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) address: usize,
    size: u64,
}

/// Grows and shrinks the arena's memory: the worker maps the same file.
struct File {
    start: u64,
}

impl Backing for File {
    type Code = Code;

    fn grow(&self, range: &Range<u64>) -> Result<(), Code> {
        session::lengthen_pinned(range.end - self.start)
    }

    fn shrink(&self, range: &Range<u64>) -> Result<(), Code> {
        // SAFETY: a whole piece of the arena's mapping without a block in it, so no code refers to it.
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

    /// Installs the arena for this process.
    pub(crate) fn install(self) {
        // There is one session, so this is the first.
        let _ = HOST_MEMORY.set(self);
    }
}

/// Returns whether the worker shares memory with this process.
pub(crate) fn is_there() -> bool {
    HOST_MEMORY.get().is_some()
}

/// Allocates a block, with zeros or an earlier block's bytes. Returns `None` without room or without shared memory.
pub(crate) fn allocate(size: usize) -> Option<Block> {
    let memory = HOST_MEMORY.get()?;
    let pages = (size as u64).checked_next_multiple_of(PAGE_BYTES)?;
    let address = memory.arena.allocate(pages, PAGE_BYTES, &File { start: memory.start }).ok()?;
    Some(Block { address: address as usize, size: pages })
}

/// Returns unused memory to the system, which keeps it out of the program's dump. Does nothing while another thread uses the
/// arena: this thread never waits for it.
pub(crate) fn trim() {
    if let Some(memory) = HOST_MEMORY.get() {
        let _ = memory.arena.try_trim(&File { start: memory.start });
    }
}

impl Block {
    /// Returns the bytes of its whole pages.
    pub(crate) fn size(&self) -> usize {
        self.size as usize
    }

    /// Frees the block, which no thread may use any more.
    pub(crate) fn free(self) {
        let Some(memory) = HOST_MEMORY.get() else { return };
        let _ = memory.arena.free(self.address as u64, 0);
        memory.arena.release_until(0);
        if memory.arena.unused_bytes() > MAX_UNUSED_BYTES {
            memory.arena.trim(&File { start: memory.start });
        }
    }
}

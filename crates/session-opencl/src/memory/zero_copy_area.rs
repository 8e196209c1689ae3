//! The zero-copy area: memory after the staging pieces, which the program maps too. Buffers of processors lie there. The program
//! itself copies from and to them, once, as a driver in its own process would; commands only order the copies.
//!
//! The area shows the driver's data as long as `Session::zero_copy_position` returns a location there. A snapshot ends that for
//! everything in it. The worker's pages become private, so a child can freeze them ([`crate::contents`]). The program still sees
//! the contents of that moment, and gets no more positions. Pages that were not written since still belong to the file, also for
//! the child. So no block is freed until the snapshot is written ([`RetainedPages`]).

#![expect(unsafe_code, reason = "maps memory that a driver uses")]

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use katydid_arena::Suballocator;
use katydid_opencl_sys::constant::{MEM_ALLOC_HOST_PTR, MEM_COPY_HOST_PTR, MEM_USE_HOST_PTR};
use katydid_opencl_sys::void;
use katydid_transport::{ZERO_COPY_EPOCH_OFFSET, ZERO_COPY_WRITERS_OFFSET, ZeroCopyMemory};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap};

use crate::memory::initial_data::InitialData;
use crate::memory::svm::PAGE_BYTES;

/// How long copies that the program has begun may take. They only move memory.
const ZERO_COPY_WRITE_TIMEOUT: Duration = Duration::from_secs(2);
/// The zero-copy area and its blocks.
#[derive(Debug)]
pub(crate) struct ZeroCopyArea {
    file: OwnedFd,
    /// Offset in the file at which the area begins.
    offset: u64,
    /// The address of its first byte in this process.
    start: usize,
    state: Mutex<AreaState>,
}

#[derive(Debug)]
struct AreaState {
    /// Free ranges, in bytes from the start of the area.
    free_ranges: Suballocator,
    /// Blocks by offset: their bytes, and whether their pages are private to the worker.
    blocks: BTreeMap<u64, (u64, bool)>,
    /// Snapshots that are not written yet, and the blocks that only they still use.
    snapshots: u32,
    unreleased: Vec<u64>,
}

/// Keeps the pages of the zero-copy area as they were when it was cleared.
#[derive(Debug)]
pub(crate) struct RetainedPages(Arc<ZeroCopyArea>);

/// A block of the zero-copy area, until this is dropped.
#[derive(Debug)]
pub(crate) struct AreaBlock {
    zero_copy: Arc<ZeroCopyArea>,
    pub(super) offset: u64,
}

impl ZeroCopyArea {
    /// Makes an area without blocks over this memory.
    pub(crate) fn new(memory: ZeroCopyMemory) -> Arc<Self> {
        let ZeroCopyMemory { file, offset, start, length } = memory;
        let mut free_ranges = Suballocator::new(0..length as u64);
        free_ranges.grow(0..length as u64);
        // The first page holds words that both sides use, and no block.
        free_ranges.allocate(PAGE_BYTES, PAGE_BYTES);
        // SAFETY: exactly the mapping. Without large pages it is only slower to fill.
        let _ = unsafe { madvise(start.cast(), length, Advice::LinuxHugepage) };
        let state =
            Mutex::new(AreaState { free_ranges, blocks: BTreeMap::new(), snapshots: 0, unreleased: Vec::new() });
        Arc::new(Self { file, offset, start: start.expose_provenance(), state })
    }

    fn state(&self) -> MutexGuard<'_, AreaState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allocates a zeroed block for a buffer; `None` if there is no room.
    pub(crate) fn take(self: &Arc<Self>, bytes: u64) -> Option<AreaBlock> {
        let length = bytes.checked_next_multiple_of(PAGE_BYTES)?;
        let mut state = self.state();
        let offset = state.free_ranges.allocate(length, PAGE_BYTES)?;
        state.blocks.insert(offset, (length, false));
        Some(AreaBlock { zero_copy: Arc::clone(self), offset })
    }

    /// Maps a block again: shared with the program, or private, with the present contents and copy-on-write. Earlier private
    /// contents are lost.
    fn map(&self, offset: u64, length: u64, is_own: bool) -> rustix::io::Result<()> {
        let flags = if is_own { MapFlags::PRIVATE | MapFlags::NORESERVE } else { MapFlags::SHARED };
        let address = self.address(offset);
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: replaces pages of a block by others with the same contents, or those of a block that no code uses.
        unsafe { mmap(address, length as usize, access, flags | MapFlags::FIXED, &self.file, self.offset + offset) }?;
        // SAFETY: a block; otherwise as in `new`.
        let _ = unsafe { madvise(address, length as usize, Advice::LinuxHugepage) };
        Ok(())
    }

    fn address(&self, offset: u64) -> *mut void {
        ptr::with_exposed_provenance_mut(self.start + offset as usize)
    }

    /// Returns a word that both sides use.
    fn word(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: aligned, in the first page, which stays mapped for the worker's life, and accessed only atomically on both
        // sides.
        unsafe { AtomicU32::from_ptr(self.address(offset as u64).cast()) }
    }

    /// Returns the epoch of the area, which every clearing increments.
    pub(crate) fn epoch(&self) -> u32 {
        self.word(ZERO_COPY_EPOCH_OFFSET).load(Ordering::SeqCst)
    }

    /// Makes all blocks private to the worker. No command runs meanwhile. Blocks stay shared if the system refuses, or if a
    /// thread of the program does not stop writing.
    pub(crate) fn clear(self: &Arc<Self>) -> RetainedPages {
        let mut state = self.state();
        state.snapshots += 1;
        let pages = RetainedPages(Arc::clone(self));
        self.word(ZERO_COPY_EPOCH_OFFSET).fetch_add(1, Ordering::SeqCst);
        let start = Instant::now();
        while self.word(ZERO_COPY_WRITERS_OFFSET).load(Ordering::SeqCst) != 0 {
            if start.elapsed() > ZERO_COPY_WRITE_TIMEOUT {
                return pages;
            }
            thread::yield_now();
        }
        for (offset, (length, is_own)) in &mut state.blocks {
            *is_own = *is_own || self.map(*offset, *length, true).is_ok();
        }
        pages
    }

    /// Frees an unused block: it is shared again, and zeroed.
    fn free(&self, state: &mut AreaState, offset: u64) {
        let Some((length, is_own)) = state.blocks.remove(&offset) else { return };
        let at = self.offset + offset;
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let is_fresh = !is_own || self.map(offset, length, false).is_ok();
        // A block that could not be restored stays out of use until the process ends.
        if is_fresh && fallocate(&self.file, punch, at, length).is_ok() && state.free_ranges.free(offset, 0).is_ok() {
            state.free_ranges.release_until(0);
        }
    }
}

impl Drop for RetainedPages {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.snapshots -= 1;
        if state.snapshots == 0 {
            for offset in std::mem::take(&mut state.unreleased) {
                self.0.free(&mut state, offset);
            }
        }
    }
}

impl AreaBlock {
    /// Returns the address of the first byte in the worker.
    pub(crate) fn pointer(&self) -> *mut void {
        self.zero_copy.address(self.offset)
    }
}

impl Drop for AreaBlock {
    fn drop(&mut self) {
        let mut state = self.zero_copy.state();
        if state.snapshots > 0 {
            state.unreleased.push(self.offset);
        } else {
            self.zero_copy.free(&mut state, self.offset);
        }
    }
}

/// Returns flags and memory for a buffer in a block, after copying `data` there if there is any.
pub(crate) fn beginning(block: &AreaBlock, flags: u64, data: &InitialData<'_>) -> (u64, *mut void) {
    // SAFETY: the block was allocated for a buffer of this size, and no other code has it; all bytes of `data` can be read.
    unsafe { ptr::copy_nonoverlapping(data.pointer().cast::<u8>(), block.pointer().cast(), data.len()) };
    (flags & !(MEM_COPY_HOST_PTR | MEM_ALLOC_HOST_PTR) | MEM_USE_HOST_PTR, block.pointer())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::fs::{MemfdFlags, fstat, ftruncate, memfd_create};

    use super::*;

    const LENGTH: usize = 8 << 20;
    /// The largest block that is available.
    const ALL: u64 = 6 << 20;

    /// Returns a zero-copy area, and the same memory as a program maps it.
    fn zero_copy() -> (Arc<ZeroCopyArea>, *const u8) {
        let file = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, PAGE_BYTES + LENGTH as u64).unwrap();
        let map = |file: &OwnedFd| {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: a new mapping.
            unsafe { mmap(ptr::null_mut(), LENGTH, access, MapFlags::SHARED, file.as_fd(), PAGE_BYTES) }.unwrap()
        };
        let (start, program) = (map(&file), map(&file));
        (
            ZeroCopyArea::new(ZeroCopyMemory { file, offset: PAGE_BYTES, start: start.cast(), length: LENGTH }),
            program.cast(),
        )
    }

    fn write(block: &AreaBlock, byte: u8) {
        // SAFETY: the block's first byte.
        unsafe { block.pointer().cast::<u8>().write_volatile(byte) };
    }

    fn read(offset: *const u8) -> u8 {
        // SAFETY: within the mapping.
        unsafe { offset.read_volatile() }
    }

    #[test]
    fn the_program_sees_what_is_written_until_the_zero_copy_area_is_cleared() {
        let (zero_copy, program) = zero_copy();
        let block = zero_copy.take(5000).unwrap();
        let seen = program.wrapping_add(block.offset as usize);
        write(&block, 1);
        assert_eq!(read(seen), 1);
        drop(zero_copy.clear());
        write(&block, 2);
        assert_eq!((read(seen), read(block.pointer().cast())), (1, 2));
        // A second clearing changes nothing.
        drop(zero_copy.clear());
        assert_eq!((read(seen), read(block.pointer().cast())), (1, 2));
    }

    #[test]
    fn clear_waits_for_writers_of_the_program() {
        let (zero_copy, _) = zero_copy();
        let epoch = zero_copy.epoch();
        zero_copy.word(ZERO_COPY_WRITERS_OFFSET).store(1, Ordering::SeqCst);
        thread::scope(|scope| {
            let clearing = scope.spawn(|| zero_copy.clear());
            while zero_copy.epoch() == epoch {
                thread::yield_now();
            }
            assert!(!clearing.is_finished());
            zero_copy.word(ZERO_COPY_WRITERS_OFFSET).store(0, Ordering::SeqCst);
            clearing.join().unwrap();
        });
        assert_eq!(zero_copy.epoch(), epoch + 1);
    }

    #[test]
    fn a_block_stays_as_it_was_until_the_snapshot_is_written() {
        let (zero_copy, _) = zero_copy();
        let block = zero_copy.take(ALL).unwrap();
        write(&block, 7);
        let (first, second) = (zero_copy.clear(), zero_copy.clear());
        let (at, access) = (zero_copy.offset + block.offset, ProtFlags::READ);
        // SAFETY: a new mapping, of the pages as a child would have them.
        let child = unsafe { mmap(ptr::null_mut(), 4096, access, MapFlags::PRIVATE, &zero_copy.file, at) }.unwrap();
        drop((block, first));
        assert_eq!(read(child.cast()), 7);
        assert!(zero_copy.take(ALL).is_none());
        drop(second);
        let block = zero_copy.take(ALL).unwrap();
        assert_eq!(read(block.pointer().cast()), 0);
    }

    #[test]
    fn a_block_that_is_freed_is_zeros_again_and_seen_again() {
        let (zero_copy, program) = zero_copy();
        let block = zero_copy.take(ALL).unwrap();
        assert!(zero_copy.take(ALL).is_none());
        let program = program.wrapping_add(block.offset as usize);
        let (flags, pointer) = beginning(&block, MEM_COPY_HOST_PTR | 4, &InitialData::Own(vec![9; 4096].into()));
        assert_eq!((flags, pointer, read(program)), (MEM_USE_HOST_PTR | 4, block.pointer(), 9));
        drop(zero_copy.clear());
        write(&block, 3);
        drop(block);
        assert!(fstat(&zero_copy.file).unwrap().st_blocks * 512 <= 2 << 20, "but for the words, nothing is left");
        let block = zero_copy.take(ALL).unwrap();
        assert_eq!((read(block.pointer().cast()), read(program)), (0, 0));
        write(&block, 4);
        assert_eq!(read(program), 4);
    }
}

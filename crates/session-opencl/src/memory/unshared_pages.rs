//! Pages of shared memory that the worker replaces by pages of its own ([`crate::memory::unshare`]).

#![expect(unsafe_code, reason = "exchanges pages under a driver that is at rest")]

use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use katydid_image::Sink;
use katydid_opencl_sys::{cl_mem, void};
use katydid_session_core::{Failure, Precopy};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Result;
use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags, madvise, mmap, mmap_anonymous, mremap_fixed, munmap};

use crate::memory::free::free_memory;

/// Bytes that one thread exchanges at a time, so that each thread needs memory for only one piece.
const UNSHARE_PIECE_BYTES: u64 = 32 << 20;
/// Bytes that one page table maps. The kernel moves whole tables if the old and the new address have the same offset in theirs.
const PAGE_TABLE_BYTES: u64 = 2 << 20;
/// Most copying threads. No machine that was measured copies faster with more.
const MAX_COPY_THREADS: usize = 8;
/// Protection of pages that the session and the program read and write.
pub(super) const PAGE_ACCESS: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// The file of memory shared by program and worker, and the blocks of it that the worker has unshared.
#[derive(Debug)]
pub(crate) struct UnsharedPages {
    file: OwnedFd,
    /// The addresses at which driver and program have it.
    range: Range<u64>,
    /// Address of a second mapping of the whole file.
    view: usize,
    /// Blocks that are private to the worker, by address.
    blocks: Mutex<BTreeMap<u64, BufferMemory>>,
}

/// The memory of an unshared buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct BufferMemory {
    length: u64,
    /// Number of maps that the program has of its parts.
    maps: u32,
}

impl UnsharedPages {
    /// Starts without unshared blocks. The file is mapped at these addresses.
    pub(crate) fn new(file: OwnedFd, range: Range<u64>) -> Result<Arc<Self>> {
        let length = (range.end - range.start) as usize;
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let view =
            unsafe { mmap(ptr::null_mut(), length, PAGE_ACCESS, MapFlags::SHARED | MapFlags::NORESERVE, &file, 0) }?;
        Ok(Arc::new(Self { file, range, view: view.expose_provenance(), blocks: Mutex::default() }))
    }

    fn blocks(&self) -> MutexGuard<'_, BTreeMap<u64, BufferMemory>> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns where the program's bytes are in the worker, if not at their address.
    pub(crate) fn view(&self, address: u64) -> Option<*mut void> {
        self.of(&mut self.blocks(), address)?;
        Some(ptr::with_exposed_provenance_mut(self.view + (address - self.range.start) as usize))
    }

    /// Returns the block that contains an address.
    fn of<'a>(&self, blocks: &'a mut BTreeMap<u64, BufferMemory>, address: u64) -> Option<&'a mut BufferMemory> {
        let (start, block) = blocks.range_mut(..=address).next_back()?;
        (address - start < block.length).then_some(block)
    }

    /// Counts a map or unmap by the program of a region that begins at an address.
    pub(crate) fn count_map(&self, address: u64, is_mapped: bool) {
        if let Some(block) = self.of(&mut self.blocks(), address) {
            block.maps = if is_mapped { block.maps.saturating_add(1) } else { block.maps.saturating_sub(1) };
        }
    }

    /// Unshares blocks, and uses prepared pages as far as they go. No command runs, and the program uses none of the blocks. If
    /// the system refuses, pages stay shared: their contents are right, and the dump includes them.
    pub(super) fn unshare(&self, blocks: &[Range<u64>], ready: &ReadyPages) {
        let new = blocks.iter().map(|block| (block.start, BufferMemory { length: block.end - block.start, maps: 0 }));
        self.blocks().extend(new);
        let pieces: Vec<Range<u64>> = blocks.iter().flat_map(pieces).collect();
        let next = AtomicUsize::new(0);
        let work = || {
            while let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
                // The caller has checked everything that can be refused.
                let room = ready.take().map_or_else(PieceMemory::new, Ok);
                let _ = room.and_then(|room| room.exchange(piece)).and_then(|()| self.punch(piece));
            }
        };
        thread::scope(|scope| {
            for _ in 1..threads().min(pieces.len()) {
                scope.spawn(work);
            }
            work();
        });
    }

    /// Punches a hole for these pages into the file.
    fn punch(&self, range: &Range<u64>) -> Result<()> {
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&self.file, punch, range.start - self.range.start, range.end - range.start)
    }

    /// Frees what maps have left in the file, for each unshared block that the program has not mapped.
    pub(super) fn punch_unmapped(&self) {
        let blocks = self.blocks();
        for (start, block) in blocks.iter().filter(|(_, block)| block.maps == 0) {
            // Pages that remain only enlarge the dump.
            let _ = self.punch(&(*start..start + block.length));
        }
    }

    /// Shares the block of a destroyed buffer with the program again. If that fails, the block stays unshared, and other buffers
    /// cannot use it.
    pub(super) fn share_again(&self, start: u64) {
        let mut blocks = self.blocks();
        let Some(BufferMemory { length, .. }) = blocks.get(&start).copied() else { return };
        let pointer = ptr::with_exposed_provenance_mut(start as usize);
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: replaces pages of a block that no driver uses any more.
        let joined =
            unsafe { mmap(pointer, length as usize, PAGE_ACCESS, flags, &self.file, start - self.range.start) };
        if joined.is_ok() {
            blocks.remove(&start);
        }
    }
}

impl Drop for UnsharedPages {
    fn drop(&mut self) {
        let length = (self.range.end - self.range.start) as usize;
        // SAFETY: this value owns the view; no code copies after the session's end.
        let _ = unsafe { munmap(ptr::with_exposed_provenance_mut(self.view), length) };
    }
}

/// Splits a block into the pieces that threads take, at multiples of the piece size.
pub(super) fn pieces(block: &Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
    let (mut start, end) = (block.start, block.end);
    std::iter::from_fn(move || {
        let piece = start..(start + 1).next_multiple_of(UNSHARE_PIECE_BYTES).min(end);
        start = piece.end;
        (piece.start < piece.end).then_some(piece)
    })
}

/// Returns the number of threads that exchange pages.
fn threads() -> usize {
    thread::available_parallelism().map_or(1, usize::from).min(MAX_COPY_THREADS)
}

/// Private pages for one piece, at any offset within a page table.
#[derive(Debug)]
struct PieceMemory {
    start: usize,
}

impl PieceMemory {
    const LENGTH: usize = (UNSHARE_PIECE_BYTES + PAGE_TABLE_BYTES) as usize;

    /// Maps room for the pages.
    fn new() -> Result<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), Self::LENGTH, PAGE_ACCESS, flags) }?;
        Ok(Self { start: start.expose_provenance() })
    }

    /// Allocates the pages before they are used. Before Linux 5.14, which lacks this, each is allocated at its first write.
    fn populate(&self) {
        let start = ptr::with_exposed_provenance_mut(self.start);
        // SAFETY: exactly this value's mapping, of which no page is used.
        let _ = unsafe { madvise(start, Self::LENGTH, Advice::LinuxPopulateWrite) };
    }

    /// Copies the contents of a piece to these pages, and moves them to the piece's addresses.
    fn exchange(self, piece: &Range<u64>) -> Result<()> {
        let (address, length) = (piece.start as usize, (piece.end - piece.start) as usize);
        let fresh = self.start + address.wrapping_sub(self.start) % PAGE_TABLE_BYTES as usize;
        let (from, to) =
            (ptr::with_exposed_provenance_mut::<u8>(address), ptr::with_exposed_provenance_mut::<u8>(fresh));
        // SAFETY: both are mapped for `length` bytes, and no code uses the block. Then the copy replaces the original.
        unsafe {
            ptr::copy_nonoverlapping(from, to, length);
            mremap_fixed(to.cast(), length, length, MremapFlags::MAYMOVE, from.cast())?;
        }
        let Self { start } = self;
        std::mem::forget(self);
        // The moved pages' old addresses may hold another mapping by now.
        unmap(start..fresh);
        unmap(fresh + length..start + Self::LENGTH);
        Ok(())
    }
}

impl Drop for PieceMemory {
    fn drop(&mut self) {
        unmap(self.start..self.start + Self::LENGTH);
    }
}

/// Unmaps the rest of a [`PieceMemory`], which may be empty.
fn unmap(pages: Range<usize>) {
    if !pages.is_empty() {
        // SAFETY: pages of a value that no longer exists, which no code uses. If they stay mapped, they only cost memory.
        let _ = unsafe { munmap(ptr::with_exposed_provenance_mut(pages.start), pages.len()) };
    }
}

/// Pages that are prepared for the next snapshot.
#[derive(Debug, Default)]
pub(crate) struct ReadyPages(Mutex<Vec<PieceMemory>>);

impl ReadyPages {
    fn rooms(&self) -> MutexGuard<'_, Vec<PieceMemory>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Option<PieceMemory> {
        self.rooms().pop()
    }

    /// Frees the prepared pages.
    pub(crate) fn clear(&self) {
        self.rooms().clear();
    }
}

/// Prepares pages for `count` pieces.
pub(super) struct PageAllocation {
    pub(super) ready: Arc<ReadyPages>,
    /// Number of pieces to prepare.
    pub(super) pieces: usize,
}

impl PageAllocation {
    fn get(&self) {
        // The program may need memory too.
        let most = free_memory() / 2 / PieceMemory::LENGTH as u64;
        for _ in 0..self.pieces.min(most as usize) {
            // Without prepared pages the snapshot takes longer.
            let Ok(room) = PieceMemory::new() else { break };
            room.populate();
            self.ready.rooms().push(room);
        }
    }
}

impl Precopy for PageAllocation {
    fn run(&mut self, _: &dyn Sink) -> std::result::Result<u64, Failure> {
        self.get();
        Ok(0)
    }
}

/// The driver calls this once, when it destroys a buffer.
pub(super) unsafe extern "C" fn destroyed(_: cl_mem, data: *mut void) {
    // SAFETY: made for this one call.
    let (unshared, start) = *unsafe { Box::from_raw(data.cast::<(Arc<UnsharedPages>, u64)>()) };
    unshared.share_again(start);
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, fstat, ftruncate, memfd_create};

    use super::*;
    use crate::memory::svm::PAGE_BYTES;

    const LENGTH: u64 = 72 << 20;
    /// Neither starts nor ends at a large page.
    const BLOCK: Range<u64> = (4 << 12)..(70 << 20) + (3 << 12);

    /// Memory as the driver and the program see it, and its file.
    struct Both {
        unshared: Arc<UnsharedPages>,
        program: u64,
        file: OwnedFd,
    }

    fn both() -> Both {
        let file = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, LENGTH).unwrap();
        let (length, flags) = (LENGTH as usize, MapFlags::SHARED);
        // SAFETY: new mappings.
        let map = || unsafe { mmap(ptr::null_mut(), length, PAGE_ACCESS, flags, &file, 0) }.unwrap();
        let (driver, program) = (map().expose_provenance() as u64, map().expose_provenance() as u64);
        let unshared = UnsharedPages::new(file.try_clone().unwrap(), driver..driver + LENGTH).unwrap();
        Both { unshared, program, file }
    }

    impl Both {
        fn driver(&self) -> u64 {
            self.unshared.range.start
        }

        fn block(&self) -> Range<u64> {
            self.driver() + BLOCK.start..self.driver() + BLOCK.end
        }

        /// Returns the number of pages that the file has.
        fn pages(&self) -> i64 {
            fstat(&self.file).unwrap().st_blocks / 8
        }
    }

    fn write(address: u64, value: u64) {
        // SAFETY: tests write only to memory that they have mapped.
        unsafe { ptr::with_exposed_provenance_mut::<u64>(address as usize).write_volatile(value) }
    }

    fn read(address: u64) -> u64 {
        // SAFETY: as above.
        unsafe { ptr::with_exposed_provenance::<u64>(address as usize).read_volatile() }
    }

    #[test]
    fn a_block_is_the_workers_alone_until_its_buffer_is_no_more() {
        let both = both();
        let (driver, program) = (both.driver(), both.program);
        (0..LENGTH).step_by(4096).for_each(|at| write(program + at, at + 1));
        both.unshared.unshare(&[both.block()], &ReadyPages::default());
        assert!((0..LENGTH).step_by(4096).all(|at| read(driver + at) == at + 1), "the driver has what it had");
        assert_eq!(both.pages(), ((LENGTH - (BLOCK.end - BLOCK.start)) / PAGE_BYTES) as i64);
        let (first, outside) = (BLOCK.start, BLOCK.end);
        write(driver + first, 7);
        write(driver + outside, 8);
        assert_eq!((read(program + first), read(program + outside)), (0, 8));
        let view = both.unshared.view(driver + first).unwrap().addr() as u64;
        write(view, 9);
        assert_eq!((read(driver + first), read(program + first)), (7, 9));
        assert!(both.unshared.view(driver + outside).is_none() && both.unshared.view(driver).is_none());
        both.unshared.share_again(driver + first);
        assert!(both.unshared.view(driver + first).is_none());
        write(driver + first, 10);
        assert_eq!(read(program + first), 10);
    }

    #[test]
    fn pages_of_unmapped_ranges_are_punched_out() {
        let both = both();
        both.unshared.unshare(&[both.block()], &ReadyPages::default());
        let last = both.block().end - PAGE_BYTES;
        both.unshared.count_map(last, true);
        write(both.unshared.view(last).unwrap().addr() as u64, 1);
        both.unshared.punch_unmapped();
        assert_eq!((both.pages(), read(both.program + BLOCK.end - PAGE_BYTES)), (1, 1));
        both.unshared.count_map(last, false);
        both.unshared.punch_unmapped();
        assert_eq!(both.pages(), 0);
    }

    #[test]
    fn pages_that_are_ready_are_used_and_the_others_given_back() {
        let (both, ready) = (both(), Arc::new(ReadyPages::default()));
        write(both.program + BLOCK.start, 5);
        PageAllocation { ready: Arc::clone(&ready), pieces: 5 }.get();
        assert_eq!(ready.rooms().len(), 5);
        both.unshared.unshare(&[both.block()], &ready);
        let left = 5 - pieces(&both.block()).count();
        assert_eq!((ready.rooms().len(), read(both.driver() + BLOCK.start)), (left, 5));
        ready.clear();
        assert!(ready.take().is_none());
    }

    #[test]
    fn pieces_are_all_of_a_block() {
        let block = UNSHARE_PIECE_BYTES - 4096..3 * UNSHARE_PIECE_BYTES + 8192;
        let pieces: Vec<Range<u64>> = pieces(&block).collect();
        assert_eq!(
            pieces,
            [
                UNSHARE_PIECE_BYTES - 4096..UNSHARE_PIECE_BYTES,
                UNSHARE_PIECE_BYTES..2 * UNSHARE_PIECE_BYTES,
                2 * UNSHARE_PIECE_BYTES..3 * UNSHARE_PIECE_BYTES,
                3 * UNSHARE_PIECE_BYTES..3 * UNSHARE_PIECE_BYTES + 8192
            ]
        );
        assert_eq!(super::pieces(&(5..5)).count(), 0);
    }

    #[test]
    fn a_driver_says_when_a_buffer_is_no_more() {
        let both = both();
        both.unshared.unshare(&[both.block()], &ReadyPages::default());
        let data = Box::into_raw(Box::new((Arc::clone(&both.unshared), both.block().start)));
        // SAFETY: called as a driver does.
        unsafe { destroyed(cl_mem::NULL, data.cast()) };
        assert!(both.unshared.view(both.block().start).is_none());
        write(both.program + BLOCK.start, 3);
        assert_eq!(read(both.block().start), 3);
    }
}

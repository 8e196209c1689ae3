//! Pages of memory of both sides that are exchanged for pages of the worker's own ([`crate::memory::unshare`]).

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

/// Pages are exchanged in pieces of this size, each by one thread: so no more memory is needed than a piece for each.
const UNSHARE_PIECE_BYTES: u64 = 32 << 20;
/// What one table of pages maps: whole tables move where old and new address have the same place in them.
const PAGE_TABLE_BYTES: u64 = 2 << 20;
/// Most threads. More do not copy faster on any machine that was seen.
const MAX_COPY_THREADS: usize = 8;
/// Protection of pages that the session and the program read and write.
pub(super) const PAGE_ACCESS: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// The file of memory that program and worker share, and the blocks of it that the worker has unshared.
#[derive(Debug)]
pub(crate) struct UnsharedPages {
    file: OwnedFd,
    /// Where the driver has it, and the program.
    range: Range<u64>,
    /// Where all of the file is mapped once more.
    view: usize,
    /// Blocks that are the worker's alone, by address.
    blocks: Mutex<BTreeMap<u64, BufferMemory>>,
}

/// Memory of a buffer: its length, and where it lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct BufferMemory {
    length: u64,
    /// How often the program has parts of it mapped.
    maps: u32,
}

impl UnsharedPages {
    /// Starts with no unshared block in the file, which is mapped at these addresses.
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

    /// Where in the worker the program's bytes are, if they are not at their address.
    pub(crate) fn view(&self, address: u64) -> Option<*mut void> {
        self.of(&mut self.blocks(), address)?;
        Some(ptr::with_exposed_provenance_mut(self.view + (address - self.range.start) as usize))
    }

    /// The block that an address is in.
    fn of<'a>(&self, blocks: &'a mut BTreeMap<u64, BufferMemory>, address: u64) -> Option<&'a mut BufferMemory> {
        let (start, block) = blocks.range_mut(..=address).next_back()?;
        (address - start < block.length).then_some(block)
    }

    /// The program has mapped a region, which begins at an address, or has it mapped no more.
    pub(crate) fn count_map(&self, address: u64, is_mapped: bool) {
        if let Some(block) = self.of(&mut self.blocks(), address) {
            block.maps = if is_mapped { block.maps.saturating_add(1) } else { block.maps.saturating_sub(1) };
        }
    }

    /// Unshares blocks that are still shared, with pages that are ready as far as they go. No command runs, and the program
    /// uses none of the blocks. Where the system refuses, pages stay shared: they hold what they should, and are in the dump.
    pub(super) fn unshare(&self, blocks: &[Range<u64>], ready: &ReadyPages) {
        let new = blocks.iter().map(|block| (block.start, BufferMemory { length: block.end - block.start, maps: 0 }));
        self.blocks().extend(new);
        let pieces: Vec<Range<u64>> = blocks.iter().flat_map(pieces).collect();
        let next = AtomicUsize::new(0);
        let work = || {
            while let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
                // The caller has checked what can be refused.
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

    /// The file has none of these pages any more.
    fn punch(&self, range: &Range<u64>) -> Result<()> {
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&self.file, punch, range.start - self.range.start, range.end - range.start)
    }

    /// Gives back what maps have left in the file, for each unshared block of which the program has nothing mapped.
    pub(super) fn punch_unmapped(&self) {
        let blocks = self.blocks();
        for (start, block) in blocks.iter().filter(|(_, block)| block.maps == 0) {
            // Pages that stay are in the dump, and nothing else.
            let _ = self.punch(&(*start..start + block.length));
        }
    }

    /// Shares the block of a destroyed buffer with the program again. A block that cannot be stays unshared, and is refused to
    /// other buffers.
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
        // SAFETY: the view is this value's own; no code copies when the session is gone.
        let _ = unsafe { munmap(ptr::with_exposed_provenance_mut(self.view), length) };
    }
}

/// The parts of a block that threads take, cut where addresses are whole pieces.
pub(super) fn pieces(block: &Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
    let (mut start, end) = (block.start, block.end);
    std::iter::from_fn(move || {
        let piece = start..(start + 1).next_multiple_of(UNSHARE_PIECE_BYTES).min(end);
        start = piece.end;
        (piece.start < piece.end).then_some(piece)
    })
}

/// As many threads as exchange pages.
fn threads() -> usize {
    thread::available_parallelism().map_or(1, usize::from).min(MAX_COPY_THREADS)
}

/// Pages of this process's own for one piece, wherever in a table of pages that begins.
#[derive(Debug)]
struct PieceMemory {
    start: usize,
}

impl PieceMemory {
    const LENGTH: usize = (UNSHARE_PIECE_BYTES + PAGE_TABLE_BYTES) as usize;

    /// A place for them.
    fn new() -> Result<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), Self::LENGTH, PAGE_ACCESS, flags) }?;
        Ok(Self { start: start.expose_provenance() })
    }

    /// Has the pages there before they are used. Where the system cannot (before Linux 5.14), each comes when it is written to.
    fn populate(&self) {
        let start = ptr::with_exposed_provenance_mut(self.start);
        // SAFETY: exactly this value's mapping, of which no page is used.
        let _ = unsafe { madvise(start, Self::LENGTH, Advice::LinuxPopulateWrite) };
    }

    /// Has these pages at the addresses of a piece, with what is there now.
    fn exchange(self, piece: &Range<u64>) -> Result<()> {
        let (address, length) = (piece.start as usize, (piece.end - piece.start) as usize);
        let fresh = self.start + address.wrapping_sub(self.start) % PAGE_TABLE_BYTES as usize;
        let (from, to) =
            (ptr::with_exposed_provenance_mut::<u8>(address), ptr::with_exposed_provenance_mut::<u8>(fresh));
        // SAFETY: both are mapped for `length` bytes, and no code uses the block. Then the one takes the place of the other, which
        // holds the same.
        unsafe {
            ptr::copy_nonoverlapping(from, to, length);
            mremap_fixed(to.cast(), length, length, MremapFlags::MAYMOVE, from.cast())?;
        }
        let Self { start } = self;
        std::mem::forget(self);
        // Where the pages were, something else may lie by now.
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

/// Gives back what a [`PieceMemory`] has left. It may be nothing.
fn unmap(pages: Range<usize>) {
    if !pages.is_empty() {
        // SAFETY: pages of a room that is no more, which no code uses. What stays mapped costs memory, and nothing else.
        let _ = unsafe { munmap(ptr::with_exposed_provenance_mut(pages.start), pages.len()) };
    }
}

/// Pages that lie ready for the next snapshot.
#[derive(Debug, Default)]
pub(crate) struct ReadyPages(Mutex<Vec<PieceMemory>>);

impl ReadyPages {
    fn rooms(&self) -> MutexGuard<'_, Vec<PieceMemory>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Option<PieceMemory> {
        self.rooms().pop()
    }

    /// No thread wants them any more.
    pub(crate) fn clear(&self) {
        self.rooms().clear();
    }
}

/// Has pages ready for `count` pieces.
pub(super) struct PageAllocation {
    pub(super) ready: Arc<ReadyPages>,
    /// How many pieces of pages are made ready.
    pub(super) pieces: usize,
}

impl PageAllocation {
    fn get(&self) {
        // The program may need memory too.
        let most = free_memory() / 2 / PieceMemory::LENGTH as u64;
        for _ in 0..self.pieces.min(most as usize) {
            // Without them it takes longer.
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

/// What a driver calls when a buffer is destroyed, once.
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
    /// Neither begins nor ends with a large page.
    const BLOCK: Range<u64> = (4 << 12)..(70 << 20) + (3 << 12);

    /// Memory as the driver and as the program have it, and its file.
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

        /// Pages that the file has.
        fn pages(&self) -> i64 {
            fstat(&self.file).unwrap().st_blocks / 8
        }
    }

    fn write(address: u64, value: u64) {
        // SAFETY: tests write where they have mapped memory.
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
        // SAFETY: as the driver would.
        unsafe { destroyed(cl_mem::NULL, data.cast()) };
        assert!(both.unshared.view(both.block().start).is_none());
        write(both.program + BLOCK.start, 3);
        assert_eq!(read(both.block().start), 3);
    }
}

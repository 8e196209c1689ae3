//! Memory of a device: its arena and its budget.
//!
//! The whole arena is reserved and readable from the start, without memory behind it. A page takes memory once it is touched, and
//! freeing gives pages back. So an operation that still uses a freed range reads zeroes instead of a hole. The budget counts
//! requested bytes, not touched ones, so out-of-memory is exact.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Mutex, OnceLock, PoisonError};

use katydid_cuda_sys::CUresult;

use crate::ffi::Outcome;
use crate::memory::heap::Heap;
use crate::memory::ipc_event_counters::identity;
use crate::memory::pages::{self, PAGE_BYTES, Protection, Range};
use crate::memory::peer_processes::{self, PeerProcesses};
use crate::memory::physical_file::PhysicalFile;
use crate::memory::space;
use crate::process::settings::MAX_SOFT_DEVICES;

/// Address of the first arena, below every address that Katydid's own arenas use; the others follow. If these addresses are not
/// free, an arena goes elsewhere.
const FIRST_ARENA_ADDRESS: u64 = 0x0a00_0000_0000;
/// Addresses of one arena. It has more of them than a device has memory, so that fragmentation does not prevent large
/// allocations.
const ARENA_BYTES: u64 = 384 << 30;

/// Memory of one device.
pub(crate) struct DeviceMemory {
    /// Index of the arena.
    index: usize,
    /// The device's number in the machine, whatever order the program sees. Processes that share the device go by it.
    physical_index: usize,
    /// The budget, in bytes.
    capacity: u64,
    /// Charged bytes of the budget.
    used: Mutex<u64>,
    /// Reserved at the first allocation.
    arena: OnceLock<Option<DeviceAddresses>>,
    /// Physical memory for mappings, which shares the budget.
    pub(crate) physical: PhysicalFile,
}

/// The addresses of a device, and which of them are in use.
struct DeviceAddresses {
    range: Range,
    heap: Mutex<Heap>,
    /// Locked before the heap.
    shared: Mutex<SharedPages>,
}

/// Pages that other processes may open. They belong to a file as large as the arena, at the same offsets.
#[derive(Default)]
struct SharedPages {
    /// Created for the first such page.
    file: Option<OwnedFd>,
    /// Start and end of stretches that do not touch.
    pages: BTreeMap<u64, u64>,
}

/// Location of memory that other processes may open.
pub(crate) struct SharedExtent {
    /// This process's descriptor of the file.
    pub(crate) descriptor: u32,
    /// Inode of the file, which tells it from others.
    pub(crate) identity: u64,
    /// Offset of the memory in the file.
    pub(crate) offset: u64,
}

impl SharedPages {
    /// Returns the stretches of `start..end`, whole pages, that are not in the file yet.
    fn missing(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let (mut at, mut missing) = (start, Vec::new());
        let preceding = self.pages.range(..=start).next_back().into_iter();
        for (&first, &last) in preceding.chain(self.pages.range(start + 1..end)) {
            if last > at {
                missing.push((at, first.min(end)));
                at = last;
            }
        }
        missing.push((at, end));
        missing.retain(|(first, last)| first < last);
        missing
    }

    /// Notes that `start..end` is in the file.
    fn add(&mut self, mut start: u64, mut end: u64) {
        let touching: Vec<(u64, u64)> =
            self.pages.range(..=end).filter(|(_, last)| **last >= start).map(|(first, last)| (*first, *last)).collect();
        for (first, last) in touching {
            self.pages.remove(&first);
            (start, end) = (start.min(first), end.max(last));
        }
        self.pages.insert(start, end);
    }
}

impl DeviceMemory {
    /// Returns memory of `capacity` bytes for the device with this index; `physical_index` is its number in the machine.
    pub(crate) fn new(index: usize, physical_index: usize, capacity: u64) -> Self {
        let physical = PhysicalFile::new();
        Self { index, physical_index, capacity, used: Mutex::new(0), arena: OnceLock::new(), physical }
    }

    /// Bytes of the device.
    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Bytes that are not in use.
    pub(crate) fn free_bytes(&self) -> u64 {
        let own = *self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let used_by_peers = self.peers().map_or(0, |peers| peers.used_by_others(self.physical_index));
        self.capacity.saturating_sub(own.saturating_add(used_by_peers))
    }

    /// Charges `bytes` to the budget, or fails with `OUT_OF_MEMORY`.
    pub(crate) fn charge(&self, bytes: u64) -> Outcome {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let after = used.checked_add(bytes).filter(|after| *after <= self.capacity);
        let after = after.ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
        if self.peers().is_some_and(|peers| !peers.take(self.physical_index, after, self.capacity)) {
            return Err(CUresult::ERROR_OUT_OF_MEMORY);
        }
        *used = after;
        Ok(())
    }

    /// Returns `bytes` to the device's free memory.
    pub(crate) fn refund(&self, bytes: u64) {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        *used = used.saturating_sub(bytes);
        if let Some(peers) = self.peers() {
            peers.give(self.physical_index, *used);
        }
    }

    /// Returns the processes that share the device. Managed memory belongs to the host, and each process has it to itself.
    fn peers(&self) -> Option<&'static PeerProcesses> {
        if self.physical_index < MAX_SOFT_DEVICES { peer_processes::of_process() } else { None }
    }

    /// Allocates `size` zeroed bytes at a multiple of `align`.
    pub(crate) fn allocate(&self, size: u64, align: u64) -> Outcome<u64> {
        self.take(size, |heap| heap.allocate(size, align))
    }

    /// Allocates `size` bytes at the end of the arena, where they do not move later allocations at its start.
    pub(crate) fn allocate_last(&self, size: u64) -> Outcome<u64> {
        self.take(size, |heap| heap.allocate_last(size))
    }

    /// Allocates `size` bytes in the middle of the arena, for memory whose address no program sees. It does not move variables of
    /// modules.
    pub(crate) fn allocate_amid(&self, size: u64) -> Outcome<u64> {
        self.take(size, |heap| heap.allocate_amid(size))
    }

    /// Allocates `size` zeroed bytes at this address, or fails with `OUT_OF_MEMORY`.
    pub(crate) fn allocate_at(&self, at: u64, size: u64) -> Outcome<u64> {
        let end = at.checked_add(size).ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
        self.take(size, |heap| heap.claim(at, end).then_some(at))
    }

    /// Charges `size` bytes and allocates them.
    fn take(&self, size: u64, find: impl FnOnce(&mut Heap) -> Option<u64>) -> Outcome<u64> {
        let cost = Heap::cost(size).ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
        self.charge(cost)?;
        let at = self.arena().and_then(|arena| find(&mut arena.heap.lock().unwrap_or_else(PoisonError::into_inner)));
        at.ok_or_else(|| {
            self.refund(cost);
            CUresult::ERROR_OUT_OF_MEMORY
        })
    }

    /// Frees the allocation at `at`, whose range has left the space and which no operation uses any more.
    pub(crate) fn release(&self, at: u64) {
        let Some(arena) = self.arena() else { return };
        let shared = arena.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let mut heap = arena.heap.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(size) = heap.free(at) {
            // Only whole pages go back. As on a GPU, memory that shares a page with a neighbour keeps its old contents.
            let _ = arena.range.discard(at, at + size);
            let (first, last) = (at.next_multiple_of(PAGE_BYTES), (at + size) / PAGE_BYTES * PAGE_BYTES);
            if let (Some(file), true) = (&shared.file, first < last) {
                pages::punch(file, first - arena.range.start(), last - first);
            }
            self.refund(size);
        }
    }

    /// Returns the arena, reserved at first use; always `None` if the process had no room for it.
    fn arena(&self) -> Option<&DeviceAddresses> {
        let make = || {
            let start = FIRST_ARENA_ADDRESS + self.index as u64 * ARENA_BYTES;
            // Under a limit on address space, there is room for the memory itself at best.
            let range = Range::at(start, ARENA_BYTES, Protection::ReadWrite)
                .or_else(|_| Range::anywhere(ARENA_BYTES, 2 << 20, Protection::ReadWrite))
                .or_else(|_| Range::anywhere(self.capacity, 2 << 20, Protection::ReadWrite))
                .ok()?;
            let heap = Heap::new(range.start(), range.start() + range.size());
            Some(DeviceAddresses { range, heap: Mutex::new(heap), shared: Mutex::default() })
        };
        self.arena.get_or_init(make).as_ref()
    }

    /// Moves the pages of memory into the file that other processes may open, and returns their location. Waits until no
    /// operation touches memory.
    pub(crate) fn share(&self, at: u64, size: u64) -> Outcome<SharedExtent> {
        let failed = |_| CUresult::ERROR_OPERATING_SYSTEM;
        let arena = self.arena().ok_or(CUresult::ERROR_INVALID_VALUE)?;
        // Taken before any other lock: the holder of the other lock may be about to free something.
        let still = space::still();
        let mut shared = arena.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let base = arena.range.start();
        if shared.file.is_none() {
            shared.file = Some(pages::memory_file(arena.range.size()).map_err(failed)?);
        }
        let missing = shared.missing(at / PAGE_BYTES * PAGE_BYTES, (at + size).next_multiple_of(PAGE_BYTES));
        for (start, end) in missing {
            let file = shared.file.as_ref().ok_or(CUresult::ERROR_OPERATING_SYSTEM)?;
            arena.range.move_into(start, end, file, start - base).map_err(failed)?;
            shared.add(start, end);
        }
        drop(still);
        let file = shared.file.as_ref().ok_or(CUresult::ERROR_OPERATING_SYSTEM)?;
        let identity = identity(file).map_err(failed)?;
        let descriptor = file.as_raw_fd().cast_unsigned();
        Ok(SharedExtent { descriptor, identity, offset: at - base })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_given_once_however_they_are_asked_for() {
        let mut shared = SharedPages::default();
        assert_eq!(shared.missing(10, 20), [(10, 20)]);
        shared.add(10, 20);
        shared.add(30, 40);
        assert_eq!(shared.missing(5, 45), [(5, 10), (20, 30), (40, 45)]);
        assert_eq!((shared.missing(12, 18), shared.missing(15, 35)), (vec![], vec![(20, 30)]));
        shared.add(20, 30);
        assert_eq!(shared.pages, BTreeMap::from([(10, 40)]));
    }

    #[test]
    fn memory_keeps_its_contents_when_it_is_given_away_and_loses_them_when_freed() {
        let memory = DeviceMemory::new(14, 14, 1 << 20);
        let at = memory.allocate(3 * PAGE_BYTES + 100, 1).unwrap();
        let byte = |at: u64| std::ptr::with_exposed_provenance_mut::<u8>(at as usize);
        #[expect(unsafe_code, reason = "looks at memory of a device")]
        // SAFETY: inside the allocation, which no other code knows.
        unsafe {
            byte(at + 2 * PAGE_BYTES).write_volatile(77);
            let first = memory.share(at, 3 * PAGE_BYTES + 100).unwrap();
            let again = memory.share(at, 3 * PAGE_BYTES + 100).unwrap();
            assert_eq!((first.offset, first.identity), (again.offset, again.identity));
            assert_eq!(byte(at + 2 * PAGE_BYTES).read_volatile(), 77);
            memory.release(at);
            assert_eq!(byte(at + 2 * PAGE_BYTES).read_volatile(), 0);
        }
    }

    #[test]
    fn out_of_memory_is_exact_and_freeing_makes_room() {
        let memory = DeviceMemory::new(15, 15, 4096);
        let first = memory.allocate(2048, 1).unwrap();
        let second = memory.allocate(2048, 1).unwrap();
        assert_eq!(memory.allocate(1, 1).err(), Some(CUresult::ERROR_OUT_OF_MEMORY));
        memory.release(first);
        assert_eq!((memory.free_bytes(), memory.allocate(2048, 1)), (2048, Ok(first)));
        memory.release(second);
        memory.release(second);
        assert_eq!(memory.free_bytes(), 2048);
    }
}

//! The bookkeeping of a pool: its allocations, the memory blocks behind them, and which streams may reuse freed ranges.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use katydid_cuda_sys::{CUresult, pool_attribute as id};
use katydid_driver_rules::pool::{POOL_BLOCK_BYTES, PoolAttribute, PoolCounts};

use crate::ffi::Outcome;
use crate::memory::device_memory::DeviceMemory;
use crate::memory::heap::Heap;
use crate::memory::pages::{Protection, Range};
use crate::sync::stream::Stream;

/// A range that a stream has freed.
pub(super) struct FreedRange {
    pub(super) at: u64,
    /// Bytes that the program requested.
    pub(super) size: u64,
    /// Number of its region.
    pub(super) id: u64,
    /// Stream in which it was freed.
    pub(super) stream: Arc<Stream>,
    /// Whether the stream has reached the free.
    pub(super) reached: bool,
}

/// Allocations, blocks and settings of a pool.
pub(super) struct PoolState {
    budget: &'static DeviceMemory,
    /// Largest memory, in whole blocks; 0 for no limit.
    limit: u64,
    /// Reserved at the first allocation.
    addresses: Option<Addresses>,
    /// First addresses of the blocks that have memory.
    blocks: BTreeSet<u64>,
    freed: Vec<FreedRange>,
    /// Its counters and settings.
    pub(super) counts: PoolCounts,
    /// A bit for each device that may use the memory.
    pub(super) granted: u32,
}

/// Addresses of a pool, and which of them are allocated.
struct Addresses {
    range: Range,
    heap: Heap,
}

/// Ranges of ended pools. They stay mapped for good, since late work of a stream may still touch them.
static SPARE_RANGES: Mutex<Vec<Range>> = Mutex::new(Vec::new());

impl Addresses {
    /// Reserves twice the addresses of the memory, so that fragmentation does not prevent large allocations.
    fn new(capacity: u64) -> Outcome<Self> {
        let size = capacity.checked_next_multiple_of(POOL_BLOCK_BYTES).and_then(|size| size.checked_mul(2));
        let size = size.ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
        let mut spare = SPARE_RANGES.lock().unwrap_or_else(PoisonError::into_inner);
        let range = match spare.iter().position(|range| range.size() == size) {
            Some(at) => spare.swap_remove(at),
            // Under a limit on address space, there is room for the memory itself at best.
            None => Range::anywhere(size, POOL_BLOCK_BYTES, Protection::ReadWrite)
                .or_else(|_| Range::anywhere(size / 2, POOL_BLOCK_BYTES, Protection::ReadWrite))
                .map_err(|_| CUresult::ERROR_OUT_OF_MEMORY)?,
        };
        let heap = Heap::new(range.start(), range.start() + range.size());
        Ok(Self { range, heap })
    }
}

impl PoolState {
    /// Reserves nothing yet.
    pub(super) fn new(budget: &'static DeviceMemory, limit: u64, granted: u32) -> Self {
        Self {
            budget,
            // A limit beyond all addresses is none.
            limit: limit.checked_next_multiple_of(POOL_BLOCK_BYTES).unwrap_or(0),
            addresses: None,
            blocks: BTreeSet::new(),
            freed: Vec::new(),
            counts: PoolCounts::default(),
            granted,
        }
    }

    /// Returns the bytes charged to the budget.
    fn reserved(&self) -> u64 {
        self.blocks.len() as u64 * POOL_BLOCK_BYTES
    }

    /// Allocates `size` bytes for `stream`: a range that the stream freed, or a new one.
    pub(super) fn take(&mut self, size: u64, stream: u64) -> Outcome<u64> {
        let at = match self.own_freed(size, stream) {
            Some(at) => at,
            None => self.take_new(size)?,
        };
        self.counts.take(size);
        Ok(at)
    }

    /// Returns a range of the same size that the stream freed, whether or not it has reached the free.
    fn own_freed(&mut self, size: u64, stream: u64) -> Option<u64> {
        let fits = |freed: &FreedRange| freed.stream.id == stream && Heap::cost(freed.size) == Heap::cost(size);
        let index = self.freed.iter().position(fits)?;
        Some(self.freed.swap_remove(index).at)
    }

    /// Takes a free range and its memory.
    fn take_new(&mut self, size: u64) -> Outcome<u64> {
        if size > self.budget.capacity() {
            return Err(CUresult::ERROR_OUT_OF_MEMORY);
        }
        if self.addresses.is_none() {
            self.addresses = Some(Addresses::new(self.budget.capacity())?);
        }
        let Some(addresses) = &mut self.addresses else { return Err(CUresult::ERROR_OUT_OF_MEMORY) };
        let at = addresses.heap.allocate_packed(size).ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
        self.back(at, at + size).inspect_err(|_| {
            if let Some(addresses) = &mut self.addresses {
                addresses.heap.free(at);
            }
        })?;
        Ok(at)
    }

    /// Takes the memory of all blocks in a range that have none yet, or of none of them.
    fn back(&mut self, start: u64, end: u64) -> Outcome {
        let first = start / POOL_BLOCK_BYTES * POOL_BLOCK_BYTES;
        let missing: Vec<u64> =
            (first..end).step_by(POOL_BLOCK_BYTES as usize).filter(|block| !self.blocks.contains(block)).collect();
        let bytes = missing.len() as u64 * POOL_BLOCK_BYTES;
        if self.limit != 0 && self.reserved() + bytes > self.limit {
            return Err(CUresult::ERROR_OUT_OF_MEMORY);
        }
        self.budget.charge(bytes)?;
        self.blocks.extend(missing);
        self.counts.note_reserved(self.reserved());
        Ok(())
    }

    /// Notes a range that a stream frees.
    pub(super) fn leave(&mut self, freed: FreedRange) {
        self.counts.give_back(freed.size);
        self.freed.push(freed);
    }

    /// Notes that a stream has reached its free.
    pub(super) fn reached(&mut self, at: u64, id: u64) {
        if let Some(freed) = self.freed.iter_mut().find(|freed| freed.at == at && freed.id == id) {
            freed.reached = true;
        }
        if self.counts.reuse[id::REUSE_ALLOW_OPPORTUNISTIC as usize - 1] {
            self.merge();
        }
    }

    /// Gives all streams the ranges whose stream has reached the free.
    pub(super) fn merge(&mut self) {
        let Some(addresses) = &mut self.addresses else { return };
        for freed in self.freed.extract_if(.., |freed| freed.reached) {
            addresses.heap.free(freed.at);
        }
    }

    /// Frees a range that no work can use.
    pub(super) fn free(&mut self, at: u64, size: u64) {
        self.counts.give_back(size);
        if let Some(addresses) = &mut self.addresses {
            addresses.heap.free(at);
        }
    }

    /// Returns the streams that have not reached their frees.
    pub(super) fn streams(&self) -> Vec<Arc<Stream>> {
        self.freed.iter().filter(|freed| !freed.reached).map(|freed| Arc::clone(&freed.stream)).collect()
    }

    /// Returns whether anything is allocated, or freed but not reached.
    pub(super) fn holds_ranges(&self) -> bool {
        self.counts.used > 0 || !self.freed.is_empty()
    }

    /// Frees unused blocks, the last ones first, as long as `keep` bytes stay.
    pub(super) fn trim(&mut self, keep: u64) {
        let Some(addresses) = &self.addresses else { return };
        let unused = |block: &u64| !addresses.heap.uses(*block, block + POOL_BLOCK_BYTES);
        let unused: Vec<u64> = self.blocks.iter().rev().copied().filter(unused).collect();
        for block in unused {
            if self.reserved() < keep.saturating_add(POOL_BLOCK_BYTES) {
                break;
            }
            let _ = addresses.range.discard(block, block + POOL_BLOCK_BYTES);
            self.blocks.remove(&block);
            self.budget.refund(POOL_BLOCK_BYTES);
        }
    }

    /// The value of an attribute.
    pub(super) fn attribute(&self, attribute: PoolAttribute) -> u64 {
        self.counts.attribute(attribute, self.reserved())
    }

    /// Sets an attribute (`cuMemPoolSetAttribute`).
    pub(super) fn set_attribute(&mut self, attribute: PoolAttribute, value: u64) -> Outcome {
        let reserved = self.reserved();
        self.counts.set_attribute(attribute, value, reserved)
    }
}

impl Drop for PoolState {
    fn drop(&mut self) {
        self.budget.refund(self.reserved());
        if let Some(addresses) = self.addresses.take() {
            for block in &self.blocks {
                let _ = addresses.range.discard(*block, block + POOL_BLOCK_BYTES);
            }
            SPARE_RANGES.lock().unwrap_or_else(PoisonError::into_inner).push(addresses.range);
        }
    }
}

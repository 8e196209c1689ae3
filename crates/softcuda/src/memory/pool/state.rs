//! The books of a pool: which places are taken, which blocks of memory stand behind them, and who may have what was
//! freed.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use katydid_cuda_sys::{CUresult, pool_attribute as id};

use crate::ffi::Outcome;
use crate::memory::device_memory::DeviceMemory;
use crate::memory::heap::Heap;
use crate::memory::pages::{Protection, Range};
use crate::sync::stream::Stream;

/// Memory is taken and given back in pieces of this many bytes, as on an H200.
const BLOCK: u64 = 32 << 20;

/// An attribute of a pool.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Attribute(u32);

impl Attribute {
    /// Refuses ids that no pool has.
    pub(crate) fn new(attribute: u32) -> Outcome<Self> {
        let known = (id::REUSE_FOLLOW_EVENT_DEPENDENCIES..=id::USED_MEM_HIGH).contains(&attribute);
        if known { Ok(Self(attribute)) } else { Err(CUresult::ERROR_INVALID_VALUE) }
    }

    /// Whether its value is an `int`; the others have 8 bytes.
    pub(crate) fn is_flag(self) -> bool {
        self.0 <= id::REUSE_ALLOW_INTERNAL_DEPENDENCIES
    }
}

/// A place that a stream has freed.
pub(super) struct Freed {
    pub(super) at: u64,
    /// As asked for.
    pub(super) size: u64,
    /// Number of its region.
    pub(super) id: u64,
    /// Who freed it.
    pub(super) stream: Arc<Stream>,
    /// Whether the stream has got there.
    pub(super) reached: bool,
}

/// What a pool knows.
pub(super) struct PoolState {
    budget: &'static DeviceMemory,
    /// Most bytes to take, whole blocks; 0 for no limit.
    limit: u64,
    /// Made at the first allocation.
    addresses: Option<Addresses>,
    /// First addresses of the blocks that memory was taken for.
    blocks: BTreeSet<u64>,
    freed: Vec<Freed>,
    /// Whether places are reused along events, when they happen to be free, and by waiting: by attribute id, from 1.
    reuse: [bool; 3],
    /// Bytes that synchronisation leaves reserved.
    pub(super) threshold: u64,
    reserved_high: u64,
    /// Bytes given out, as asked for.
    used: u64,
    used_high: u64,
    /// A bit for each device that may use the memory.
    pub(super) granted: u32,
}

/// Addresses of a pool, and which of them are taken.
struct Addresses {
    range: Range,
    heap: Heap,
}

/// Ranges of pools that have ended: addresses are kept mapped for good, as late work of a stream may still touch them.
static SPARE: Mutex<Vec<Range>> = Mutex::new(Vec::new());

impl Addresses {
    /// Twice the memory there is, so that holes do not hinder large places.
    fn new(capacity: u64) -> Outcome<Self> {
        let size = capacity.checked_next_multiple_of(BLOCK).and_then(|size| size.checked_mul(2));
        let size = size.ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
        let mut spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner);
        let range = match spare.iter().position(|range| range.size() == size) {
            Some(at) => spare.swap_remove(at),
            // A limit on address space leaves room for the memory itself at best.
            None => Range::anywhere(size, BLOCK, Protection::ReadWrite)
                .or_else(|_| Range::anywhere(size / 2, BLOCK, Protection::ReadWrite))
                .map_err(|_| CUresult::ERROR_OUT_OF_MEMORY)?,
        };
        let heap = Heap::new(range.start(), range.start() + range.size());
        Ok(Self { range, heap })
    }
}

impl PoolState {
    /// Nothing is reserved yet.
    pub(super) fn new(budget: &'static DeviceMemory, limit: u64, granted: u32) -> Self {
        Self {
            budget,
            // One beyond all addresses is none.
            limit: limit.checked_next_multiple_of(BLOCK).unwrap_or(0),
            addresses: None,
            blocks: BTreeSet::new(),
            freed: Vec::new(),
            reuse: [true; 3],
            threshold: 0,
            reserved_high: 0,
            used: 0,
            used_high: 0,
            granted,
        }
    }

    /// Bytes taken of the budget.
    fn reserved(&self) -> u64 {
        self.blocks.len() as u64 * BLOCK
    }

    /// A place of `size` bytes for `stream`: one of its own that it freed, or a new one.
    pub(super) fn take(&mut self, size: u64, stream: u64) -> Outcome<u64> {
        let at = match self.own_freed(size, stream) {
            Some(at) => at,
            None => self.take_new(size)?,
        };
        self.used += size;
        self.used_high = self.used_high.max(self.used);
        Ok(at)
    }

    /// A place of the same extent that the stream freed, whether or not it has got there.
    fn own_freed(&mut self, size: u64, stream: u64) -> Option<u64> {
        let fits = |freed: &Freed| freed.stream.id == stream && Heap::cost(freed.size) == Heap::cost(size);
        let index = self.freed.iter().position(fits)?;
        Some(self.freed.swap_remove(index).at)
    }

    /// A free place with memory behind it.
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
        let first = start / BLOCK * BLOCK;
        let missing: Vec<u64> =
            (first..end).step_by(BLOCK as usize).filter(|block| !self.blocks.contains(block)).collect();
        let bytes = missing.len() as u64 * BLOCK;
        if self.limit != 0 && self.reserved() + bytes > self.limit {
            return Err(CUresult::ERROR_OUT_OF_MEMORY);
        }
        self.budget.charge(bytes)?;
        self.blocks.extend(missing);
        self.reserved_high = self.reserved_high.max(self.reserved());
        Ok(())
    }

    /// A place was freed in a stream.
    pub(super) fn leave(&mut self, freed: Freed) {
        self.used = self.used.saturating_sub(freed.size);
        self.freed.push(freed);
    }

    /// A stream has come to where it freed a place.
    pub(super) fn reached(&mut self, at: u64, id: u64) {
        if let Some(freed) = self.freed.iter_mut().find(|freed| freed.at == at && freed.id == id) {
            freed.reached = true;
        }
        if self.reuse[id::REUSE_ALLOW_OPPORTUNISTIC as usize - 1] {
            self.merge();
        }
    }

    /// Lets everybody have the places whose stream has got there.
    pub(super) fn merge(&mut self) {
        let Some(addresses) = &mut self.addresses else { return };
        for freed in self.freed.extract_if(.., |freed| freed.reached) {
            addresses.heap.free(freed.at);
        }
    }

    /// Frees a place that no work can use.
    pub(super) fn free(&mut self, at: u64, size: u64) {
        self.used = self.used.saturating_sub(size);
        if let Some(addresses) = &mut self.addresses {
            addresses.heap.free(at);
        }
    }

    /// Streams that have not come to where they freed places.
    pub(super) fn streams(&self) -> Vec<Arc<Stream>> {
        self.freed.iter().filter(|freed| !freed.reached).map(|freed| Arc::clone(&freed.stream)).collect()
    }

    /// Whether anything is given out or on its way back.
    pub(super) fn holds_places(&self) -> bool {
        self.used > 0 || !self.freed.is_empty()
    }

    /// Gives back blocks without a place, last ones first, as long as `keep` bytes stay.
    pub(super) fn trim(&mut self, keep: u64) {
        let Some(addresses) = &self.addresses else { return };
        let unused = |block: &u64| !addresses.heap.uses(*block, block + BLOCK);
        let unused: Vec<u64> = self.blocks.iter().rev().copied().filter(unused).collect();
        for block in unused {
            if self.reserved() < keep.saturating_add(BLOCK) {
                break;
            }
            let _ = addresses.range.discard(block, block + BLOCK);
            self.blocks.remove(&block);
            self.budget.refund(BLOCK);
        }
    }

    /// The value of an attribute.
    pub(super) fn attribute(&self, attribute: Attribute) -> u64 {
        match attribute.0 {
            id::RELEASE_THRESHOLD => self.threshold,
            id::RESERVED_MEM_CURRENT => self.reserved(),
            id::RESERVED_MEM_HIGH => self.reserved_high,
            id::USED_MEM_CURRENT => self.used,
            id::USED_MEM_HIGH => self.used_high,
            flag => u64::from(self.reuse[flag as usize - 1]),
        }
    }

    /// Changes an attribute.
    pub(super) fn set_attribute(&mut self, attribute: Attribute, value: u64) -> Outcome {
        match attribute.0 {
            id::RELEASE_THRESHOLD => self.threshold = value,
            id::RESERVED_MEM_HIGH if value == 0 => self.reserved_high = self.reserved(),
            id::USED_MEM_HIGH if value == 0 => self.used_high = self.used,
            flag if attribute.is_flag() => self.reuse[flag as usize - 1] = value != 0,
            _ => return Err(CUresult::ERROR_INVALID_VALUE),
        }
        Ok(())
    }
}

impl Drop for PoolState {
    fn drop(&mut self) {
        self.budget.refund(self.reserved());
        if let Some(addresses) = self.addresses.take() {
            for block in &self.blocks {
                let _ = addresses.range.discard(*block, block + BLOCK);
            }
            SPARE.lock().unwrap_or_else(PoisonError::into_inner).push(addresses.range);
        }
    }
}

//! The heaps of a context from which device code allocates: that of `malloc`, and the device runtime's own.
//!
//! A heap is one range of device memory, made at the first allocation of device code and freed with its context. As on a GPU,
//! kernels reach all of it, and the host API reaches none of it. Its free list lies outside, so no program can damage it with a
//! stray write. The heap lies at the end of the device's memory, so that it does not move variables of later modules. A
//! checkpoint saves its state, and a restore recreates it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use katydid_cuda_sys::CUresult;
use katydid_ptx_exec::DeviceHeap;

use crate::ffi::Outcome;
use crate::memory::heap::Heap;
use crate::memory::pages::PAGE_BYTES;

/// Allocations in a heap start at multiples of this.
const DEVICE_HEAP_GRANULE_BYTES: u64 = 16;

/// Bytes of the device runtime's heap: parameters of all launches that may be pending, and its strings.
const RUNTIME_HEAP_BYTES: u64 = 16 << 20;

/// A heap's state in a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HeapState {
    pub(crate) pool: DeviceHeap,
    /// Its memory: start and end.
    pub(crate) range: (u64, u64),
    /// Start and end of each allocation.
    pub(crate) used: Vec<(u64, u64)>,
}

impl HeapState {
    /// Encodes the state as little-endian u64: number of the heap, its start and end, then start and end of each allocation.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let head = [u64::from(self.pool == DeviceHeap::Runtime), self.range.0, self.range.1];
        let bounds = self.used.iter().flat_map(|(start, end)| [*start, *end]);
        head.into_iter().chain(bounds).flat_map(u64::to_le_bytes).collect()
    }

    /// Decodes a state; `None` if it is damaged.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (numbers, rest) = bytes.as_chunks::<8>();
        let numbers: Vec<u64> = numbers.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let (head, bounds) = numbers.split_first_chunk::<3>()?;
        let pool = [DeviceHeap::Malloc, DeviceHeap::Runtime].into_iter().nth(usize::try_from(head[0]).ok()?)?;
        let (bounds, odd) = bounds.as_chunks::<2>();
        let used = bounds.iter().map(|[start, end]| (*start, *end)).collect();
        (rest.is_empty() && odd.is_empty()).then_some(Self { pool, range: (head[1], head[2]), used })
    }
}

/// Both heaps of a context.
#[derive(Default)]
pub(crate) struct DeviceHeaps {
    malloc: Mutex<Option<Heap>>,
    runtime: Mutex<Option<Heap>>,
}

impl DeviceHeaps {
    /// Locks the heap of a pool.
    fn lock(&self, pool: DeviceHeap) -> MutexGuard<'_, Option<Heap>> {
        let heap = match pool {
            DeviceHeap::Malloc => &self.malloc,
            DeviceHeap::Runtime => &self.runtime,
        };
        heap.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allocates for device code. Returns `None` when the heap, or the device, is full. A new heap gets its memory from
    /// `reserve`, which takes a number of bytes and returns their start. `malloc_bytes` is the size of the heap of `malloc`.
    pub(crate) fn allocate(
        &self,
        pool: DeviceHeap,
        (size, align): (u64, u64),
        malloc_bytes: impl FnOnce() -> Option<u64>,
        reserve: impl FnOnce(u64) -> Option<u64>,
    ) -> Option<u64> {
        let mut heap = self.lock(pool);
        if heap.is_none() {
            let bytes = match pool {
                DeviceHeap::Malloc => malloc_bytes()?,
                DeviceHeap::Runtime => RUNTIME_HEAP_BYTES,
            };
            let bytes = bytes.max(1).checked_next_multiple_of(PAGE_BYTES)?;
            let start = reserve(bytes)?;
            *heap = Some(Heap::with_granule(start, start + bytes, DEVICE_HEAP_GRANULE_BYTES));
        }
        heap.as_mut()?.allocate(size, align)
    }

    /// Frees an allocation. Ignores any other address.
    pub(crate) fn free(&self, pool: DeviceHeap, address: u64) {
        if let Some(heap) = self.lock(pool).as_mut() {
            heap.free(address);
        }
    }

    /// Returns the states of the heaps that exist.
    pub(crate) fn states(&self) -> Vec<HeapState> {
        let keep = |pool| {
            self.lock(pool).as_ref().map(|heap| HeapState { pool, range: heap.range(), used: heap.used().collect() })
        };
        [DeviceHeap::Malloc, DeviceHeap::Runtime].into_iter().filter_map(keep).collect()
    }

    /// Recreates a heap, with zeroes in its memory. Fails with `OUT_OF_MEMORY` when its memory is not free, and with
    /// `INVALID_VALUE` for an invalid state, or when the heap exists already. `reserve` takes the start and the size of the
    /// memory.
    pub(crate) fn make(&self, state: &HeapState, reserve: impl FnOnce(u64, u64) -> Outcome<u64>) -> Outcome {
        let mut heap = self.lock(state.pool);
        let (start, end) = state.range;
        let is_whole = start < end && start.is_multiple_of(PAGE_BYTES) && end.is_multiple_of(PAGE_BYTES);
        if heap.is_some() || !is_whole {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let mut new_heap = Heap::with_granule(start, end, DEVICE_HEAP_GRANULE_BYTES);
        if !state.used.iter().all(|(start, end)| new_heap.claim(*start, *end)) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        reserve(start, end - start)?;
        *heap = Some(new_heap);
        Ok(())
    }

    /// Refuses to change the size of the heap of `malloc` once that exists.
    pub(crate) fn check_resize(&self) -> Outcome {
        if self.lock(DeviceHeap::Malloc).is_some() { Err(CUresult::ERROR_INVALID_VALUE) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_survive_as_bytes_and_damaged_ones_are_noticed() {
        let state =
            HeapState { pool: DeviceHeap::Runtime, range: (4096, 8192), used: vec![(4096, 4112), (5000, 6000)] };
        let bytes = state.to_bytes();
        assert_eq!(HeapState::from_bytes(&bytes), Some(state));
        for damaged in [&bytes[..bytes.len() - 8], &bytes[..bytes.len() - 1], &bytes[..16], &[]] {
            assert_eq!(HeapState::from_bytes(damaged), None, "{} bytes", damaged.len());
        }
        assert_eq!(HeapState::from_bytes(&[&[9], &bytes[1..]].concat()), None);
    }
}

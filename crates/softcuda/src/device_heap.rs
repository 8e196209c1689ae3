//! The heaps of a context that device code allocates from: that of `malloc`, and the device runtime's own.
//!
//! A heap is one range of device memory, made when device code first asks for some of it, and gone with its context.
//! Kernels reach all of it, as on a GPU; the host API reaches none of it. Which places are taken is kept here, so no
//! program can damage the heap by writing where it should not.

use std::sync::{Mutex, MutexGuard, PoisonError};

use katydid_cuda_sys::{CUresult, limit};
use katydid_ptx_exec::Pool;

use crate::border::Outcome;
use crate::context::Context;
use crate::heap::Heap;
use crate::memory;
use crate::space::Kind;

/// Places in a heap start at multiples of this.
const GRANULE: u64 = 16;

/// Bytes of the device runtime's heap: parameters of all launches that may be pending, and its strings.
const RUNTIME: u64 = 16 << 20;

/// Both heaps of a context.
#[derive(Default)]
pub(crate) struct DeviceHeaps {
    malloc: Mutex<Option<Heap>>,
    runtime: Mutex<Option<Heap>>,
}

impl DeviceHeaps {
    /// A heap, locked.
    fn lock(&self, pool: Pool) -> MutexGuard<'_, Option<Heap>> {
        let heap = match pool {
            Pool::Malloc => &self.malloc,
            Pool::Runtime => &self.runtime,
        };
        heap.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Room for device code of `context`; `None` when the heap, or the device, is full.
    pub(crate) fn allocate(&self, context: &Context, pool: Pool, size: u64, align: u64) -> Option<u64> {
        let mut heap = self.lock(pool);
        if heap.is_none() {
            let bytes = match pool {
                Pool::Malloc => context.limits.get(limit::MALLOC_HEAP_SIZE).ok()?,
                Pool::Runtime => RUNTIME,
            };
            let start = memory::place_as(context, bytes.max(1), GRANULE, Kind::Heap).ok()?;
            *heap = Some(Heap::with_granule(start, start + bytes, GRANULE));
        }
        heap.as_mut()?.allocate(size, align)
    }

    /// Gives room back; an address that was not given is left alone.
    pub(crate) fn free(&self, pool: Pool, address: u64) {
        if let Some(heap) = self.lock(pool).as_mut() {
            heap.free(address);
        }
    }

    /// Refuses to change the size of the heap of `malloc` once there is one.
    pub(crate) fn check_resize(&self) -> Outcome {
        if self.lock(Pool::Malloc).is_some() { Err(CUresult::ERROR_INVALID_VALUE) } else { Ok(()) }
    }
}

//! Memory and names that are ready for the next snapshot.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::buffers::Buffers;
use super::hash::Names;
use super::spare_memory::SpareMemory;

/// Memory and names that are ready for the next snapshot, shared by threads.
#[derive(Debug, Clone, Default)]
pub(super) struct PrecopyState(Arc<Mutex<PrecopyBuffers>>);

/// Memory for copies, and names of chunks that are in the image ahead of time.
#[derive(Debug, Default)]
pub(super) struct PrecopyBuffers {
    /// Memory for copies, by the device's ordinal.
    pub(super) spare: BTreeMap<i32, SpareMemory>,
    pub(super) names: Names,
    /// Memory used for the precopy: views of the program's memory at addresses of the worker, and memory for hashes.
    pub(super) used: Vec<SpareMemory>,
    /// Registered host memory that is not in use.
    pub(super) buffers: Vec<Buffers>,
}

impl PrecopyState {
    pub(super) fn lock(&self) -> MutexGuard<'_, PrecopyBuffers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the bytes of device memory that it holds.
    pub(super) fn size(&self) -> u64 {
        self.lock().spare.values().map(SpareMemory::size).sum()
    }

    /// Releases memory; false if it holds none. The GPU should be at rest.
    pub(super) fn clear(&self) -> bool {
        let ready = std::mem::take(&mut *self.lock());
        !ready.spare.is_empty() || !ready.used.is_empty()
    }

    /// Keeps memory of a device that a snapshot has used.
    pub(super) fn keep(&self, device: i32, spare: SpareMemory) {
        let mut ready = self.lock();
        let before = ready.spare.insert(device, spare);
        ready.used.extend(before);
    }

    /// Takes registered memory of at least `count` chunks, if there is some.
    pub(super) fn take_buffers(&self, count: usize) -> Option<Buffers> {
        let mut ready = self.lock();
        let fitting = ready.buffers.iter().position(|buffers| buffers.count() >= count)?;
        Some(ready.buffers.swap_remove(fitting))
    }

    /// Keeps registered memory, for the next thread that needs some.
    pub(super) fn keep_buffers(&self, buffers: Buffers) {
        self.lock().buffers.push(buffers);
    }

    /// Returns whether there is nothing to release.
    pub(super) fn is_empty(&self) -> bool {
        let ready = self.lock();
        ready.spare.is_empty() && ready.used.is_empty()
    }

    /// Takes everything for a snapshot while the GPU is at rest.
    pub(super) fn take(&self) -> PrecopyBuffers {
        let mut ready = self.lock();
        // The snapshot needs registered memory too, and returns it.
        let buffers = std::mem::take(&mut ready.buffers);
        std::mem::replace(&mut *ready, PrecopyBuffers { buffers, ..PrecopyBuffers::default() })
    }
}

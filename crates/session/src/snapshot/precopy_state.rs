//! What lies ready for the next snapshot.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::buffers::Buffers;
use super::hash::Names;
use super::scratch::Scratch;

/// What lies ready for the next snapshot.
#[derive(Debug, Clone, Default)]
pub(super) struct PrecopyState(Arc<Mutex<PrecopyBuffers>>);

/// Memory to copy to, and what is in the image ahead of time.
#[derive(Debug, Default)]
pub(super) struct PrecopyBuffers {
    /// Memory to copy to, by the device's ordinal.
    pub(super) spare: BTreeMap<i32, Scratch>,
    pub(super) names: Names,
    /// What was used to bring it there: the program's memory at addresses of ours, and where hashes were computed.
    pub(super) used: Vec<Scratch>,
    /// Host memory that is registered, not in use.
    pub(super) buffers: Vec<Buffers>,
}

impl PrecopyState {
    pub(super) fn lock(&self) -> MutexGuard<'_, PrecopyBuffers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes of devices that it holds.
    pub(super) fn size(&self) -> u64 {
        self.lock().spare.values().map(Scratch::size).sum()
    }

    /// Gives memory back; false when it holds none. The GPU had better be at rest.
    pub(super) fn clear(&self) -> bool {
        let ready = std::mem::take(&mut *self.lock());
        !ready.spare.is_empty() || !ready.used.is_empty()
    }

    /// Takes memory of a device that a snapshot has used.
    pub(super) fn keep(&self, device: i32, spare: Scratch) {
        let mut ready = self.lock();
        let before = ready.spare.insert(device, spare);
        ready.used.extend(before);
    }

    /// Registered memory of at least `count` chunks, if there is some.
    pub(super) fn take_buffers(&self, count: usize) -> Option<Buffers> {
        let mut ready = self.lock();
        let fitting = ready.buffers.iter().position(|buffers| buffers.count() >= count)?;
        Some(ready.buffers.swap_remove(fitting))
    }

    /// Takes registered memory, for the thread that wants some next.
    pub(super) fn keep_buffers(&self, buffers: Buffers) {
        self.lock().buffers.push(buffers);
    }

    /// Whether there is nothing to give back.
    pub(super) fn is_empty(&self) -> bool {
        let ready = self.lock();
        ready.spare.is_empty() && ready.used.is_empty()
    }

    /// Hands everything to a snapshot, which is taken while the GPU is at rest.
    pub(super) fn take(&self) -> PrecopyBuffers {
        let mut ready = self.lock();
        // The snapshot wants it too, and gives it back.
        let buffers = std::mem::take(&mut ready.buffers);
        std::mem::replace(&mut *ready, PrecopyBuffers { buffers, ..PrecopyBuffers::default() })
    }
}

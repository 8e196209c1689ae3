//! What a session keeps between snapshots.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use katydid_cuda_sys::CUcontext;
use katydid_driver::Driver;
use katydid_wire::companion::MovedVariable;

use super::copy_context::{CopyContext, CopyStreams};
use super::declared::DeclaredVariables;
use super::hash::KnownContents;
use super::precopy_state::PrecopyState;

/// What a session keeps between snapshots.
#[derive(Debug, Default)]
pub(crate) struct Snapshots {
    /// One at most of each device, in its primary context.
    pub(super) copy_contexts: Vec<CopyContext>,
    /// Seed of the hash, on all devices; none where host code reads their memory as fast.
    pub(super) seed: Option<u64>,
    /// Streams of every context, as far as its driver has made any.
    pub(super) streams: Vec<CopyStreams>,
    pub(super) known_contents: KnownContents,
    pub(super) precopy: PrecopyState,
    pub(super) busy: Arc<SnapshotMemory>,
    pub(super) declared: Arc<DeclaredVariables>,
    /// Variables that a restore found elsewhere, and that nothing in the session points to.
    pub(crate) moved: Vec<MovedVariable>,
}

/// Bytes of device memory that snapshots behind the program hold, one entry each.
#[derive(Debug, Default)]
pub(super) struct SnapshotMemory {
    held_bytes: Mutex<Vec<u64>>,
    changed: Condvar,
}

/// A snapshot that is being written; over when dropped.
pub(super) struct PendingWrite {
    pub(super) busy: Arc<SnapshotMemory>,
    bytes: u64,
}

impl Drop for PendingWrite {
    fn drop(&mut self) {
        let mut held = self.busy.lock();
        if let Some(at) = held.iter().position(|bytes| *bytes == self.bytes) {
            held.swap_remove(at);
        }
        drop(held);
        self.busy.changed.notify_all();
    }
}

impl SnapshotMemory {
    fn lock(&self) -> MutexGuard<'_, Vec<u64>> {
        self.held_bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Snapshots {
    pub(crate) fn new(copy_context: Option<CopyContext>) -> Self {
        let streams = copy_context.iter().map(|copy_context| copy_context.streams).collect();
        let seed = copy_context.as_ref().and_then(|copy_context| copy_context.kernel).map(|kernel| kernel.seed());
        Self { copy_contexts: copy_context.into_iter().collect(), seed, streams, ..Self::default() }
    }

    pub(super) fn copy_contexts(&self) -> &[CopyContext] {
        &self.copy_contexts
    }

    pub(super) fn declared(&self) -> &Arc<DeclaredVariables> {
        &self.declared
    }

    pub(super) fn begin(&self, bytes: u64) -> PendingWrite {
        self.busy.lock().push(bytes);
        PendingWrite { busy: Arc::clone(&self.busy), bytes }
    }

    /// Bytes of device memory that will be free again.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.busy.lock().iter().sum::<u64>() + self.precopy.size()
    }

    /// Whether snapshots hold memory of devices, or will in a moment.
    pub(crate) fn hold_some(&self) -> bool {
        !self.busy.lock().is_empty() || !self.precopy.is_empty()
    }

    /// Waits until no snapshot is being written; false when none was.
    pub(crate) fn release_waiting(&self) -> bool {
        let held = self.busy.lock();
        let was_busy = !held.is_empty();
        drop(self.busy.changed.wait_while(held, |held| !held.is_empty()).unwrap_or_else(PoisonError::into_inner));
        was_busy
    }

    /// Gives back what snapshots have left aside, only while the GPU is at rest; false when that was nothing, or while a snapshot
    /// is written or prepared: its kernels will read there.
    pub(crate) fn give_back(&self) -> bool {
        self.busy.lock().is_empty() && self.precopy.clear()
    }

    /// A context begins, and is current: what is ours there comes before everything of the program's. `device` is that of a
    /// primary one.
    pub(crate) fn enter(&mut self, driver: &Driver, device: Option<i32>, context: CUcontext) {
        if self.streams.iter().any(|streams| streams.context == context) {
            return;
        }
        // Where there are none, copies go by default streams, and nothing is hashed.
        let copy_context =
            device.and_then(|device| CopyContext::make_in_current(driver, device, context, self.seed).ok());
        match &copy_context {
            Some(copy_context) => self.streams.push(copy_context.streams),
            None => self.streams.extend(CopyStreams::make(driver, context)),
        }
        self.copy_contexts.extend(copy_context);
    }

    /// A context has ended, and what was ours there with it.
    pub(crate) fn end_context(&mut self, context: CUcontext) {
        self.streams.retain(|streams| streams.context != context);
    }

    /// A context is about to end: nothing of ours may be under way in it, nor be used afterwards.
    pub(crate) fn leave(&mut self, context: CUcontext) {
        if self.copy_contexts.iter().any(|copy_context| copy_context.context == context) {
            self.release_waiting();
            self.precopy.clear();
            self.copy_contexts.retain(|copy_context| copy_context.context != context);
        }
    }
}

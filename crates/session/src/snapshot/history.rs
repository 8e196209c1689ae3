//! State of a session between snapshots.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use katydid_cuda_sys::CUcontext;
use katydid_driver::Driver;
use katydid_wire::companion::MovedVariable;

use super::copy_context::{CopyContext, CopyStreams};
use super::declared::DeclaredVariables;
use super::hash::KnownContents;
use super::precopy_state::PrecopyState;

/// State of a session between snapshots.
#[derive(Debug, Default)]
pub(crate) struct Snapshots {
    /// At most one for each device, in its primary context.
    pub(super) copy_contexts: Vec<CopyContext>,
    /// Seed of the hash on all devices; none if host code reads their memory as fast.
    pub(super) seed: Option<u64>,
    /// Streams of every context in which the driver could make some.
    pub(super) streams: Vec<CopyStreams>,
    pub(super) known_contents: KnownContents,
    pub(super) precopy: PrecopyState,
    pub(super) busy: Arc<SnapshotMemory>,
    pub(super) declared: Arc<DeclaredVariables>,
    /// Variables that a restore found elsewhere, and to which nothing in the session points.
    pub(crate) moved: Vec<MovedVariable>,
}

/// Bytes of device memory that background snapshots hold, one entry each.
#[derive(Debug, Default)]
pub(super) struct SnapshotMemory {
    held_bytes: Mutex<Vec<u64>>,
    changed: Condvar,
}

/// A snapshot that is being written; it ends when dropped.
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

    /// Returns the bytes of device memory that will be free again.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.busy.lock().iter().sum::<u64>() + self.precopy.size()
    }

    /// Returns whether snapshots hold device memory, or will in a moment.
    pub(crate) fn hold_some(&self) -> bool {
        !self.busy.lock().is_empty() || !self.precopy.is_empty()
    }

    /// Waits until no snapshot is being written; false if none was.
    pub(crate) fn release_waiting(&self) -> bool {
        let held = self.busy.lock();
        let was_busy = !held.is_empty();
        drop(self.busy.changed.wait_while(held, |held| !held.is_empty()).unwrap_or_else(PoisonError::into_inner));
        was_busy
    }

    /// Releases memory that snapshots have kept, only while the GPU is at rest. Returns false without any, or while a
    /// snapshot is written or prepared: its kernels will read there.
    pub(crate) fn give_back(&self) -> bool {
        self.busy.lock().is_empty() && self.precopy.clear()
    }

    /// Makes the worker's objects in a new context, which is current, before any object of the program. `device` is that of
    /// a primary context.
    pub(crate) fn enter(&mut self, driver: &Driver, device: Option<i32>, context: CUcontext) {
        if self.streams.iter().any(|streams| streams.context == context) {
            return;
        }
        // Without them, copies use default streams, and nothing is hashed.
        let copy_context =
            device.and_then(|device| CopyContext::make_in_current(driver, device, context, self.seed).ok());
        match &copy_context {
            Some(copy_context) => self.streams.push(copy_context.streams),
            None => self.streams.extend(CopyStreams::make(driver, context)),
        }
        self.copy_contexts.extend(copy_context);
    }

    /// Forgets the worker's objects in a context that ended.
    pub(crate) fn end_context(&mut self, context: CUcontext) {
        self.streams.retain(|streams| streams.context != context);
    }

    /// Prepares for the end of a context: no work of the worker may run in it, nor its objects be used afterwards.
    pub(crate) fn leave(&mut self, context: CUcontext) {
        if self.copy_contexts.iter().any(|copy_context| copy_context.context == context) {
            self.release_waiting();
            self.precopy.clear();
            self.copy_contexts.retain(|copy_context| copy_context.context != context);
        }
    }
}

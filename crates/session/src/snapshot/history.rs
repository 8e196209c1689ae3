//! What a session keeps between snapshots.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use katydid_cuda_sys::CUcontext;
use katydid_driver::Driver;
use katydid_wire::companion::MovedVariable;

use super::carrier::{Carrier, Streams};
use super::declared::Declared;
use super::hash::KnownContents;
use super::precopy_state::PrecopyState;

/// What a session keeps between snapshots.
#[derive(Debug, Default)]
pub(crate) struct Snapshots {
    /// One at most of each device, in its primary context.
    pub(super) carriers: Vec<Carrier>,
    /// Seed of the hash, on all devices; none where host code reads their memory as fast.
    pub(super) seed: Option<u64>,
    /// Streams of every context, as far as its driver has made any.
    pub(super) streams: Vec<Streams>,
    pub(super) known: KnownContents,
    pub(super) precopy: PrecopyState,
    pub(super) busy: Arc<Busy>,
    pub(super) declared: Arc<Declared>,
    /// Variables that a restore found elsewhere, and that nothing in the session points to.
    pub(crate) moved: Vec<MovedVariable>,
}

/// Bytes of device memory that snapshots behind the program hold, one entry each.
#[derive(Debug, Default)]
pub(super) struct Busy {
    held: Mutex<Vec<u64>>,
    changed: Condvar,
}

/// A snapshot that is being written; over when dropped.
pub(super) struct PendingWrite {
    pub(super) busy: Arc<Busy>,
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

impl Busy {
    fn lock(&self) -> MutexGuard<'_, Vec<u64>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Snapshots {
    pub(crate) fn new(carrier: Option<Carrier>) -> Self {
        let streams = carrier.iter().map(|carrier| carrier.streams).collect();
        let seed = carrier.as_ref().and_then(|carrier| carrier.kernel).map(|kernel| kernel.seed());
        Self { carriers: carrier.into_iter().collect(), seed, streams, ..Self::default() }
    }

    pub(super) fn carriers(&self) -> &[Carrier] {
        &self.carriers
    }

    pub(super) fn declared(&self) -> &Arc<Declared> {
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
        let carrier = device.and_then(|device| Carrier::make_here(driver, device, context, self.seed).ok());
        match &carrier {
            Some(carrier) => self.streams.push(carrier.streams),
            None => self.streams.extend(Streams::make(driver, context)),
        }
        self.carriers.extend(carrier);
    }

    /// A context has ended, and what was ours there with it.
    pub(crate) fn end_context(&mut self, context: CUcontext) {
        self.streams.retain(|streams| streams.context != context);
    }

    /// A context is about to end: nothing of ours may be under way in it, nor be used afterwards.
    pub(crate) fn leave(&mut self, context: CUcontext) {
        if self.carriers.iter().any(|carrier| carrier.context == context) {
            self.release_waiting();
            self.precopy.clear();
            self.carriers.retain(|carrier| carrier.context != context);
        }
    }
}

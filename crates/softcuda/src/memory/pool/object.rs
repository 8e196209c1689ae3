//! A pool: its state, ordered with streams, and the address space.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use katydid_driver_rules::pool::{PoolAttribute, PoolLocation};

use super::state::{FreedRange, PoolState};
use crate::ffi::Outcome;
use crate::memory::managed;
use crate::memory::space::{self, RangeKind, Region};
use crate::process::device;
use crate::process::handles::{Registry, new_handle};
use crate::sync::job::StreamJob;
use crate::sync::stream::Stream;

/// A memory pool (`CUmemoryPool`).
pub(crate) struct Pool {
    /// Handle that programs know the pool by.
    pub(crate) handle: usize,
    /// Location of its memory.
    pub(crate) location: PoolLocation,
    state: Mutex<PoolState>,
}

/// Pools whose handle is alive.
pub(super) static POOLS: Registry<Pool> = Registry::new();
/// Whether a pool ever existed. Most programs have none, and their synchronisations need not look for pools.
static EVER_HAD_POOLS: AtomicBool = AtomicBool::new(false);

/// Returns whether there may be a pool.
pub(super) fn may_be_any() -> bool {
    EVER_HAD_POOLS.load(Ordering::Acquire)
}

impl Pool {
    /// Creates a pool of at most `limit` bytes (0: unlimited), alive until its handle ends.
    pub(super) fn new(location: PoolLocation, limit: u64) -> Outcome<Arc<Self>> {
        let (budget, granted) = match location {
            PoolLocation::Device(ordinal) => (&device::get(ordinal.cast_signed())?.memory, 1 << ordinal),
            PoolLocation::Host => (managed::memory(), 0),
            PoolLocation::Managed(_) => (managed::memory(), u32::MAX),
        };
        let state = Mutex::new(PoolState::new(budget, limit, granted));
        let pool = Arc::new(Self { handle: new_handle(), location, state });
        POOLS.insert(pool.handle, Arc::clone(&pool));
        EVER_HAD_POOLS.store(true, Ordering::Release);
        Ok(pool)
    }

    /// Returns the ordinal of the device that owns its memory for queries.
    pub(super) fn device(&self) -> i32 {
        match self.location {
            PoolLocation::Device(ordinal) | PoolLocation::Managed(Some(ordinal)) => ordinal.cast_signed(),
            PoolLocation::Host | PoolLocation::Managed(None) => 0,
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allocates for work of a stream, and inserts the region into the space.
    pub(super) fn find_range(&self, size: u64, stream: u64) -> Outcome<u64> {
        let mut state = self.state();
        let at = state.take(size, stream)?;
        let managed = matches!(self.location, PoolLocation::Managed(_));
        let kind = RangeKind::Pooled { pool: self.handle, devices: state.granted, managed };
        space::write().replace(Region::new(at, size, kind, self.device(), 0));
        Ok(at)
    }

    /// Frees an allocation when `stream` gets there.
    pub(super) fn free_in(self: &Arc<Self>, region: &Region, stream: &Arc<Stream>) -> Outcome {
        let (at, id, pool) = (region.start, region.id, Arc::clone(self));
        if region.is_managed() {
            managed::forget(at, region.size);
        }
        space::write().leave(at);
        self.state().leave(FreedRange { at, size: region.size, id, stream: Arc::clone(stream), reached: false });
        // The job runs in a failed context too, since the memory outlives it.
        let job = StreamJob::always(move |_| {
            pool.reached(at, id);
            Ok(())
        });
        stream.submit(job.short()).map(drop)
    }

    /// Handles a stream that has reached its free, unless the memory was reused in between. No wait is necessary: the pages stay
    /// mapped as long as the pool, so a late access of another stream reads old bytes at worst.
    fn reached(&self, at: u64, id: u64) {
        space::write().remove_same(at, id);
        self.state().reached(at, id);
    }

    /// Waits until every stream has reached its frees of this pool.
    pub(super) fn wait_for_freed(&self) {
        let streams = self.state().streams();
        for stream in streams {
            stream.finish();
        }
        self.state().merge();
    }

    /// `cuMemPoolTrimTo`: frees unused blocks as long as `keep` bytes stay.
    pub(crate) fn trim(&self, keep: u64) {
        let mut state = self.state();
        state.merge();
        state.trim(keep);
    }

    /// At a synchronisation point, gives all streams what was freed before, and frees unused blocks.
    pub(super) fn reclaim_completed(&self) {
        let mut state = self.state();
        state.merge();
        let keep = state.counts.threshold;
        state.trim(keep);
    }

    /// Returns the value of an attribute.
    pub(crate) fn attribute(&self, attribute: PoolAttribute) -> u64 {
        self.state().attribute(attribute)
    }

    /// Changes an attribute. Counters can only be reset to 0.
    pub(crate) fn set_attribute(&self, attribute: PoolAttribute, value: u64) -> Outcome {
        self.state().set_attribute(attribute, value)
    }

    /// Returns whether `device` may use the pool's memory.
    pub(crate) fn grants(&self, device: i32) -> bool {
        self.state().granted & (1 << device) != 0
    }

    /// `cuMemPoolSetAccess`: also applies to earlier allocations.
    pub(crate) fn grant(&self, device: i32, allowed: bool) {
        let mut state = self.state();
        let bit = 1 << device;
        state.granted = if allowed { state.granted | bit } else { state.granted & !bit };
        space::write().set_pool_access(self.handle, state.granted);
    }
}

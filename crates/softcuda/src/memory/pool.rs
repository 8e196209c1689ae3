//! Memory pools: places that streams allocate and free in their own order.
//!
//! A pool owns a range of addresses and takes memory of its budget in blocks of 32 MiB, where its places are packed. An
//! address is given at the call. A place that a stream freed can be had again by that stream at once, because the old
//! work comes before the new, and by everybody else when the stream has got there. Blocks without a place go back at
//! synchronisation points, down to the pool's release threshold.
//!
//! `state` keeps the books, this file orders them with streams, `of_devices` says which pool a call means.

mod of_devices;
mod state;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use katydid_cuda_sys::{CUmemoryPool, CUresult};

use crate::ffi::Outcome;
use crate::memory::allocation::DeviceMemory;
use crate::memory::managed;
use crate::memory::space::{self, Kind, Region};
use crate::process::device::Device;
use crate::process::handles::{Registry, mint};
use crate::sync::job::Job;
use crate::sync::stream::Stream;

pub(crate) use of_devices::{Wanted, current, default_of, default_of_device, select, settle, trim_device};
pub(crate) use state::Attribute;
use state::{Freed, State};

/// Where the memory of a pool lives.
#[derive(Clone, Copy)]
pub(crate) enum Place {
    /// On a device.
    Device(&'static Device),
    /// In the host's memory; devices use it once that was granted.
    Host,
    /// Shared by the host and a device.
    Managed(&'static Device),
}

impl Place {
    /// Whose budget pays.
    fn budget(self) -> &'static DeviceMemory {
        match self {
            Self::Device(device) => &device.memory,
            Self::Host | Self::Managed(_) => managed::memory(),
        }
    }

    /// The device that pointers are said to belong to.
    fn ordinal(self) -> i32 {
        match self {
            Self::Device(device) | Self::Managed(device) => device.ordinal,
            Self::Host => 0,
        }
    }
}

/// One pool.
pub(crate) struct Pool {
    /// Its handle.
    pub(crate) handle: usize,
    /// Where its memory lives.
    pub(crate) place: Place,
    state: Mutex<State>,
}

/// Pools whose handle is alive.
static POOLS: Registry<Pool> = Registry::new();

impl Pool {
    /// A pool of at most `limit` bytes (0: as much as there is), alive until its handle ends.
    fn new(place: Place, limit: u64) -> Arc<Self> {
        let granted = match place {
            Place::Device(device) => 1 << device.ordinal,
            Place::Host => 0,
            Place::Managed(_) => u32::MAX,
        };
        let state = Mutex::new(State::new(place.budget(), limit, granted));
        let pool = Arc::new(Self { handle: mint(), place, state });
        POOLS.insert(pool.handle, Arc::clone(&pool));
        of_devices::noted();
        pool
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An address of `size` bytes that work in `stream` may use from now on; 0 bytes are nowhere.
    ///
    /// # Errors
    ///
    /// `OUT_OF_MEMORY` after everything that was freed has been waited for.
    pub(crate) fn allocate(self: &Arc<Self>, size: u64, stream: &Stream) -> Outcome<u64> {
        if size == 0 {
            return Ok(0);
        }
        let at = self.find_place(size, stream.id).or_else(|_| {
            self.wait_for_freed();
            of_devices::trim(self.place.ordinal(), 0);
            self.find_place(size, stream.id)
        })?;
        Ok(at)
    }

    /// A place for work of a stream, and the region over it.
    fn find_place(&self, size: u64, stream: u64) -> Outcome<u64> {
        let mut state = self.state();
        let at = state.take(size, stream)?;
        let managed = matches!(self.place, Place::Managed(_));
        let kind = Kind::Pooled { pool: self.handle, devices: state.granted, managed };
        space::write().replace(Region::new(at, size, kind, self.place.ordinal(), 0));
        Ok(at)
    }

    /// Frees a place when `stream` gets there.
    fn free_in(self: &Arc<Self>, region: &Region, stream: &Arc<Stream>) -> Outcome {
        let (at, id, pool) = (region.start, region.id, Arc::clone(self));
        if region.is_managed() {
            managed::forget(at, region.size);
        }
        space::write().leave(at);
        self.state().leave(Freed { at, size: region.size, id, stream: Arc::clone(stream), reached: false });
        // In a failed context too: the memory outlives it.
        let job = Job::always(move |_| {
            pool.reached(at, id);
            Ok(())
        });
        stream.submit(job.short()).map(drop)
    }

    /// The stream has come to where it freed a place, unless the place was given out again in between. Nothing is waited
    /// for: the pages stay mapped as long as the pool, so that a late access of another stream meets old bytes at worst.
    fn reached(&self, at: u64, id: u64) {
        space::write().remove_same(at, id);
        self.state().reached(at, id);
    }

    /// Waits until every stream has passed what it freed here.
    fn wait_for_freed(&self) {
        let streams = self.state().streams();
        for stream in streams {
            stream.finish();
        }
        self.state().merge();
    }

    /// `cuMemPoolTrimTo`: gives unused blocks back as long as `keep` bytes stay.
    pub(crate) fn trim(&self, keep: u64) {
        let mut state = self.state();
        state.merge();
        state.trim(keep);
    }

    /// A synchronisation point: what was freed before it can be had by all, and unused blocks go.
    fn settle(&self) {
        let mut state = self.state();
        state.merge();
        let keep = state.threshold;
        state.trim(keep);
    }

    /// The value of an attribute.
    pub(crate) fn attribute(&self, attribute: Attribute) -> u64 {
        self.state().attribute(attribute)
    }

    /// Changes an attribute; those that are counters can only be set back to 0.
    pub(crate) fn set_attribute(&self, attribute: Attribute, value: u64) -> Outcome {
        self.state().set_attribute(attribute, value)
    }

    /// Whether `device` may use the pool's memory.
    pub(crate) fn grants(&self, device: i32) -> bool {
        self.state().granted & (1 << device) != 0
    }

    /// `cuMemPoolSetAccess`: for memory that was given out before as well.
    pub(crate) fn grant(&self, device: i32, allowed: bool) {
        let mut state = self.state();
        let bit = 1 << device;
        state.granted = if allowed { state.granted | bit } else { state.granted & !bit };
        space::write().set_pool_access(self.handle, state.granted);
    }
}

/// The pool behind a handle.
pub(crate) fn resolve(handle: CUmemoryPool) -> Outcome<Arc<Pool>> {
    crate::process::state::ready()?;
    POOLS.get(handle.address() as usize).ok_or(CUresult::ERROR_INVALID_VALUE)
}

/// `cuMemPoolCreate`.
pub(crate) fn create(place: Place, limit: u64) -> Arc<Pool> {
    Pool::new(place, limit)
}

/// `cuMemPoolDestroy`: the handle ends, and the memory once everything in it is freed. Default pools cannot end.
pub(crate) fn destroy(handle: CUmemoryPool) -> Outcome {
    let pool = resolve(handle)?;
    if of_devices::is_default(&pool) {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    of_devices::forget(&pool);
    POOLS.remove(pool.handle);
    if pool.state().holds_places() {
        of_devices::keep_until_empty(pool);
    }
    Ok(())
}

/// The pool that a range came from, also one whose handle has ended.
fn owner(region: &Region) -> Outcome<Arc<Pool>> {
    let Kind::Pooled { pool, .. } = region.kind else { return Err(CUresult::ERROR_INVALID_VALUE) };
    let found = POOLS.get(pool).or_else(|| of_devices::kept(pool));
    found.ok_or(CUresult::ERROR_INVALID_VALUE)
}

/// `cuMemFreeAsync` of a range that came from a pool.
pub(crate) fn free_async(region: &Region, stream: &Arc<Stream>) -> Outcome {
    owner(region)?.free_in(region, stream)
}

/// `cuMemFree` of a range that came from a pool, once no work can use it.
pub(crate) fn free_now(region: &Region) -> Outcome {
    let pool = owner(region)?;
    space::write().remove_same(region.start, region.id).ok_or(CUresult::ERROR_INVALID_VALUE)?;
    pool.state().free(region.start, region.size);
    Ok(())
}

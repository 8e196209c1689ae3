//! Finds the pool that a call means: the default one of a location, or the one that a program made current there.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use katydid_cuda_sys::{CUmemLocation, CUresult};
use katydid_driver_rules::pool::PoolLocation;

use super::object::{POOLS, Pool, may_be_any};
use crate::ffi::Outcome;
use crate::process::device::{self, Device};

/// Returns the location of a device's own memory.
pub(crate) fn of_device(device: &Device) -> PoolLocation {
    PoolLocation::Device(device.ordinal.unsigned_abs())
}

/// Returns what a location and an allocation type name. Programs see the machine as one NUMA node.
pub(crate) fn named(location: CUmemLocation, kind: u32) -> Outcome<PoolLocation> {
    PoolLocation::named(&location, kind, 1, |ordinal| device::get(ordinal).is_ok())
}

/// Default, current and ended pools.
struct PoolChoices {
    /// Default pools that calls have used.
    defaults: Vec<(PoolLocation, Arc<Pool>)>,
    /// Pools that are current in place of the default ones.
    current: Vec<(PoolLocation, Arc<Pool>)>,
    /// Pools without a handle that still have allocations.
    ended: Vec<Arc<Pool>>,
}

static POOL_CHOICE: Mutex<PoolChoices> =
    Mutex::new(PoolChoices { defaults: Vec::new(), current: Vec::new(), ended: Vec::new() });

fn choice() -> MutexGuard<'static, PoolChoices> {
    POOL_CHOICE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the pool of `list` for a location.
fn listed(list: &[(PoolLocation, Arc<Pool>)], location: PoolLocation) -> Option<Arc<Pool>> {
    list.iter().find(|(known, _)| *known == location).map(|(_, pool)| Arc::clone(pool))
}

/// Returns the default pool of a location, made at first use.
pub(crate) fn default_of(location: PoolLocation) -> Outcome<Arc<Pool>> {
    let mut choice = choice();
    if let Some(pool) = listed(&choice.defaults, location) {
        return Ok(pool);
    }
    let pool = Pool::new(location, 0)?;
    choice.defaults.push((location, Arc::clone(&pool)));
    Ok(pool)
}

/// Returns the default pool of a device.
pub(crate) fn default_of_device(device: &Device) -> Outcome<Arc<Pool>> {
    default_of(of_device(device))
}

/// Returns the pool for allocations at a location.
pub(crate) fn current(location: PoolLocation) -> Outcome<Arc<Pool>> {
    let chosen = listed(&choice().current, location);
    chosen.map_or_else(|| default_of(location), Ok)
}

/// Makes `pool` the current one of a location that it suits.
pub(crate) fn select(location: PoolLocation, pool: &Arc<Pool>) -> Outcome {
    if !pool.location.suits(location) {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let mut choice = choice();
    choice.current.retain(|(known, _)| *known != location);
    choice.current.push((location, Arc::clone(pool)));
    Ok(())
}

/// Returns whether it is a default pool.
pub(super) fn is_default(pool: &Arc<Pool>) -> bool {
    choice().defaults.iter().any(|(_, known)| Arc::ptr_eq(known, pool))
}

/// Removes a pool that ends from the current ones.
pub(super) fn forget(pool: &Arc<Pool>) {
    choice().current.retain(|(_, known)| !Arc::ptr_eq(known, pool));
}

/// Keeps a pool without a handle as long as it has allocations.
pub(super) fn keep_until_empty(pool: Arc<Pool>) {
    choice().ended.push(pool);
}

/// Returns the pool that had this handle.
pub(super) fn ended_pool(handle: usize) -> Option<Arc<Pool>> {
    choice().ended.iter().find(|pool| pool.handle == handle).cloned()
}

/// Frees the unused memory of the device's pools at a synchronisation point.
pub(crate) fn reclaim_completed(device: i32) {
    if !may_be_any() {
        return;
    }
    for pool in counted_for(device) {
        pool.reclaim_completed();
    }
    let ended: Vec<_> = choice().ended.extract_if(.., |pool| !pool.state().holds_ranges()).collect();
    drop(ended);
}

/// Trims all pools of a device to at most `keep` bytes of unused memory.
pub(super) fn trim(device: i32, keep: u64) {
    for pool in counted_for(device) {
        pool.trim(keep);
    }
}

/// Frees the unused memory of all pools of a device, for another allocation.
pub(crate) fn trim_device(device: i32) {
    if may_be_any() {
        trim(device, 0);
    }
}

/// Returns all pools whose memory counts for a device.
fn counted_for(ordinal: i32) -> Vec<Arc<Pool>> {
    let mut pools = POOLS.all();
    pools.extend(choice().ended.iter().cloned());
    pools.retain(|pool| pool.device() == ordinal);
    pools
}

//! Which pool a call means: the default one of a place, and the one that a program made current for it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use katydid_cuda_sys::{CUmemLocation, CUresult};
use katydid_driver_rules::pool::PoolLocation;

use super::object::{POOLS, Pool, may_be_any};
use crate::ffi::Outcome;
use crate::process::device::{self, Device};

/// The location of a device's own memory.
pub(crate) fn of_device(device: &Device) -> PoolLocation {
    PoolLocation::Device(device.ordinal.unsigned_abs())
}

/// What a location and an allocation type name. The machine is shown as one node.
pub(crate) fn named(location: CUmemLocation, kind: u32) -> Outcome<PoolLocation> {
    PoolLocation::named(&location, kind, 1, |ordinal| device::get(ordinal).is_ok())
}

/// What is known about pools besides themselves.
struct PoolChoices {
    /// Default pools that a caller has asked for.
    defaults: Vec<(PoolLocation, Arc<Pool>)>,
    /// Pools that were made current in the place of default ones.
    current: Vec<(PoolLocation, Arc<Pool>)>,
    /// Pools without a handle that still hold places.
    ended: Vec<Arc<Pool>>,
}

static POOL_CHOICE: Mutex<PoolChoices> =
    Mutex::new(PoolChoices { defaults: Vec::new(), current: Vec::new(), ended: Vec::new() });

fn choice() -> MutexGuard<'static, PoolChoices> {
    POOL_CHOICE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The pool of `list` for a place.
fn listed(list: &[(PoolLocation, Arc<Pool>)], location: PoolLocation) -> Option<Arc<Pool>> {
    list.iter().find(|(known, _)| *known == location).map(|(_, pool)| Arc::clone(pool))
}

/// The default pool of a place, made when it is first asked for.
pub(crate) fn default_of(location: PoolLocation) -> Outcome<Arc<Pool>> {
    let mut choice = choice();
    if let Some(pool) = listed(&choice.defaults, location) {
        return Ok(pool);
    }
    let pool = Pool::new(location, 0)?;
    choice.defaults.push((location, Arc::clone(&pool)));
    Ok(pool)
}

/// The default pool of a device.
pub(crate) fn default_of_device(device: &Device) -> Outcome<Arc<Pool>> {
    default_of(of_device(device))
}

/// The pool that allocations for a place come from.
pub(crate) fn current(location: PoolLocation) -> Outcome<Arc<Pool>> {
    let chosen = listed(&choice().current, location);
    chosen.map_or_else(|| default_of(location), Ok)
}

/// Makes `pool` the current one of a place that it suits.
pub(crate) fn select(location: PoolLocation, pool: &Arc<Pool>) -> Outcome {
    if !pool.location.suits(location) {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let mut choice = choice();
    choice.current.retain(|(known, _)| *known != location);
    choice.current.push((location, Arc::clone(pool)));
    Ok(())
}

/// Whether it is a default pool.
pub(super) fn is_default(pool: &Arc<Pool>) -> bool {
    choice().defaults.iter().any(|(_, known)| Arc::ptr_eq(known, pool))
}

/// A pool that ends is current nowhere any more.
pub(super) fn forget(pool: &Arc<Pool>) {
    choice().current.retain(|(_, known)| !Arc::ptr_eq(known, pool));
}

/// Keeps a pool without a handle as long as it holds places.
pub(super) fn keep_until_empty(pool: Arc<Pool>) {
    choice().ended.push(pool);
}

/// The pool that had this handle.
pub(super) fn ended_pool(handle: usize) -> Option<Arc<Pool>> {
    choice().ended.iter().find(|pool| pool.handle == handle).cloned()
}

/// A synchronisation point of `device`: its pools give back what they need not keep.
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

/// Has all pools of a device keep at most `keep` bytes of unused memory.
pub(super) fn trim(device: i32, keep: u64) {
    for pool in counted_for(device) {
        pool.trim(keep);
    }
}

/// Gives back the unused memory of all pools of a device: another allocation needs it.
pub(crate) fn trim_device(device: i32) {
    if may_be_any() {
        trim(device, 0);
    }
}

/// All pools whose memory counts for a device.
fn counted_for(ordinal: i32) -> Vec<Arc<Pool>> {
    let mut pools = POOLS.all();
    pools.extend(choice().ended.iter().cloned());
    pools.retain(|pool| pool.device() == ordinal);
    pools
}

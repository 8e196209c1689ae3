//! Which pool a call means: the default one of a place, and the one that a program made current for it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use katydid_cuda_sys::{CUmemLocation, CUresult, allocation_type, location_type};

use super::object::{POOLS, Pool, PoolLocation, may_be_any};
use crate::ffi::Outcome;
use crate::process::device::{self, Device};

/// A place and a kind of memory that pools are chosen for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PoolKind {
    /// Ordinal of the device; `None` for the host.
    device: Option<i32>,
    /// Shared by host and devices.
    managed: bool,
}

impl PoolKind {
    /// Of a device.
    pub(crate) fn of_device(device: &Device) -> Self {
        Self { device: Some(device.ordinal), managed: false }
    }

    /// What a location and an allocation type name.
    pub(crate) fn new(location: CUmemLocation, kind: u32) -> Outcome<Self> {
        let device = match location.type_ {
            location_type::DEVICE => Some(device::get(location.id).map_err(|_| CUresult::ERROR_INVALID_VALUE)?.ordinal),
            location_type::HOST => None,
            // Managed memory may be wanted nowhere in particular.
            location_type::NONE if kind == allocation_type::MANAGED => None,
            // The machine is shown as one node.
            location_type::HOST_NUMA if location.id == 0 => None,
            _ => return Err(CUresult::ERROR_INVALID_VALUE),
        };
        match kind {
            allocation_type::PINNED => Ok(Self { device, managed: false }),
            allocation_type::MANAGED => Ok(Self { device, managed: true }),
            _ => Err(CUresult::ERROR_INVALID_VALUE),
        }
    }

    /// Where memory of such a pool lives.
    pub(crate) fn location(self) -> Outcome<PoolLocation> {
        Ok(match (self.device, self.managed) {
            (Some(ordinal), false) => PoolLocation::Device(device::get(ordinal)?),
            (ordinal, true) => PoolLocation::Managed(device::get(ordinal.unwrap_or(0))?),
            (None, false) => PoolLocation::Host,
        })
    }

    /// Whether a pool is of this kind.
    fn suits(self, pool: &Pool) -> bool {
        match pool.location {
            PoolLocation::Device(device) => self == Self::of_device(device),
            PoolLocation::Host => self == Self { device: None, managed: false },
            PoolLocation::Managed(_) => self.managed,
        }
    }
}

/// What is known about pools besides themselves.
struct Choice {
    /// Default pools that a caller has asked for.
    defaults: Vec<(PoolKind, Arc<Pool>)>,
    /// Pools that were made current in the place of default ones.
    current: Vec<(PoolKind, Arc<Pool>)>,
    /// Pools without a handle that still hold places.
    ended: Vec<Arc<Pool>>,
}

static CHOICE: Mutex<Choice> = Mutex::new(Choice { defaults: Vec::new(), current: Vec::new(), ended: Vec::new() });

fn choice() -> MutexGuard<'static, Choice> {
    CHOICE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The pool of `list` for a place.
fn listed(list: &[(PoolKind, Arc<Pool>)], wanted: PoolKind) -> Option<Arc<Pool>> {
    list.iter().find(|(known, _)| *known == wanted).map(|(_, pool)| Arc::clone(pool))
}

/// The default pool of a place, made when it is first asked for.
pub(crate) fn default_of(wanted: PoolKind) -> Outcome<Arc<Pool>> {
    let mut choice = choice();
    if let Some(pool) = listed(&choice.defaults, wanted) {
        return Ok(pool);
    }
    let pool = Pool::new(wanted.location()?, 0);
    choice.defaults.push((wanted, Arc::clone(&pool)));
    Ok(pool)
}

/// The default pool of a device.
pub(crate) fn default_of_device(device: &Device) -> Outcome<Arc<Pool>> {
    default_of(PoolKind::of_device(device))
}

/// The pool that allocations for a place come from.
pub(crate) fn current(wanted: PoolKind) -> Outcome<Arc<Pool>> {
    let chosen = listed(&choice().current, wanted);
    chosen.map_or_else(|| default_of(wanted), Ok)
}

/// Makes `pool` the current one of a place that it suits.
pub(crate) fn select(wanted: PoolKind, pool: &Arc<Pool>) -> Outcome {
    if !wanted.suits(pool) {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let mut choice = choice();
    choice.current.retain(|(known, _)| *known != wanted);
    choice.current.push((wanted, Arc::clone(pool)));
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
pub(super) fn kept(handle: usize) -> Option<Arc<Pool>> {
    choice().ended.iter().find(|pool| pool.handle == handle).cloned()
}

/// A synchronisation point of `device`: its pools give back what they need not keep.
pub(crate) fn settle(device: i32) {
    if !may_be_any() {
        return;
    }
    for pool in of_device(device) {
        pool.settle();
    }
    let ended: Vec<_> = choice().ended.extract_if(.., |pool| !pool.state().holds_places()).collect();
    drop(ended);
}

/// Has all pools of a device keep at most `keep` bytes of unused memory.
pub(super) fn trim(device: i32, keep: u64) {
    for pool in of_device(device) {
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
fn of_device(ordinal: i32) -> Vec<Arc<Pool>> {
    let mut pools = POOLS.all();
    pools.extend(choice().ended.iter().cloned());
    pools.retain(|pool| pool.location.ordinal() == ordinal);
    pools
}

//! Page-locked host memory: allocated here, or registered by the program. Device and host address are the same.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use katydid_cuda_sys::{CUresult, host_alloc_flags};
use katydid_driver_rules::memory::{Registration, pinned_flags};

use crate::context::contexts;
use crate::context::state::Context;
use crate::ffi::Outcome;
use crate::memory::pages::{self, PAGE_BYTES, Protection, Range};
use crate::memory::space::{self, RangeKind, Region};
use crate::process::settings;

/// Memory that was allocated here, by address.
static HOST_ALLOCATIONS: Mutex<BTreeMap<u64, Range>> = Mutex::new(BTreeMap::new());

fn allocated() -> MutexGuard<'static, BTreeMap<u64, Range>> {
    HOST_ALLOCATIONS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `cuMemHostAlloc`.
pub(crate) fn allocate(context: &Context, size: u64, flags: u32) -> Outcome<u64> {
    let flags = pinned_flags(flags)?;
    // 0 bytes have no address.
    if size == 0 {
        return Ok(0);
    }
    let pages = size.checked_next_multiple_of(PAGE_BYTES).ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
    let mut allocated = allocated();
    let sum = allocated.values().map(Range::size).sum::<u64>();
    // Untouched pages take no memory, so this check limits their sum: locked memory cannot exceed the RAM.
    if sum.checked_add(pages).is_none_or(|sum| sum > settings::host_memory()) {
        return Err(CUresult::ERROR_OUT_OF_MEMORY);
    }
    let range = Range::anywhere(pages, PAGE_BYTES, Protection::ReadWrite).map_err(|_| CUresult::ERROR_OUT_OF_MEMORY)?;
    let start = range.start();
    allocated.insert(start, range);
    drop(allocated);
    // All such memory is mapped, whatever the flags.
    let region = Region::new(start, size, RangeKind::Pinned(flags), context.device.ordinal, context.handle);
    space::write().insert(region);
    Ok(start)
}

/// `cuMemFreeHost`: waits for the work of the memory's context. Null is allowed.
pub(crate) fn free(start: u64) -> Outcome {
    if start == 0 {
        return Ok(());
    }
    let region = space::starting_at(start)?;
    if !matches!(region.kind, RangeKind::Pinned(_)) {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    take_away(&region)?;
    give_back(&region);
    Ok(())
}

/// `cuMemHostRegister` of memory that the process maps.
pub(crate) fn register(context: &Context, start: u64, size: u64, flags: u32) -> Outcome {
    let Registration { flags, is_read_only, .. } = Registration::new(start, size, flags)?;
    // Read-only memory needs the flag for it.
    if !pages::is_mapped(start, size) || !(is_read_only || pages::is_writable(start, size)) {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let kind = RangeKind::Registered(flags);
    let region = Region::new(start, size, kind, context.device.ordinal, context.handle);
    let mut space = space::write();
    if space.insert(region) {
        return Ok(());
    }
    // Only memory that is registered already has its own code. Memory of the driver is not the program's.
    let was_registered = space.overlapping(start, size).all(|other| matches!(other.kind, RangeKind::Registered(_)));
    Err(if was_registered { CUresult::ERROR_HOST_MEMORY_ALREADY_REGISTERED } else { CUresult::ERROR_INVALID_VALUE })
}

/// `cuMemHostUnregister`: waits for the work of the memory's context.
pub(crate) fn unregister(start: u64) -> Outcome {
    if start == 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let region = space::find(start).ok_or(CUresult::ERROR_HOST_MEMORY_NOT_REGISTERED)?;
    let whole = matches!(region.kind, RangeKind::Registered(_)) && region.start == start;
    if whole { take_away(&region) } else { Err(CUresult::ERROR_INVALID_VALUE) }
}

/// Waits for a region's context, then takes the region out of the space.
fn take_away(region: &Region) -> Outcome {
    if let Some(context) = contexts::living(region.context) {
        context.drain();
    }
    space::write().remove(region.start).ok_or(CUresult::ERROR_INVALID_VALUE)?;
    space::quiet();
    Ok(())
}

/// Frees the memory of a region that has left the space, if it was allocated here. Registered memory is the program's.
pub(crate) fn give_back(region: &Region) {
    if matches!(region.kind, RangeKind::Pinned(_)) {
        drop(allocated().remove(&region.start));
    }
}

/// Refuses an address outside of page-locked memory.
pub(crate) fn check_mapped(address: u64) -> Outcome {
    let region = space::find(address).filter(Region::is_host);
    region.map(drop).ok_or(CUresult::ERROR_INVALID_VALUE)
}

/// Returns the flags of the host memory at `address`. Managed memory is mapped, too.
pub(crate) fn flags(address: u64) -> Outcome<u32> {
    match space::find(address).map(|region| region.kind) {
        Some(RangeKind::Pinned(flags) | RangeKind::Registered(flags)) => Ok(flags),
        Some(RangeKind::Managed) => Ok(host_alloc_flags::DEVICEMAP),
        _ => Err(CUresult::ERROR_INVALID_VALUE),
    }
}

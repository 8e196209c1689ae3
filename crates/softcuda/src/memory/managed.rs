//! Managed memory: one address for the host and every device, and the program's advice about it.
//!
//! Host and devices are the same processor here, so nothing ever moves. Advice, prefetching and attachment are checked as in the
//! real driver, stored, and returned by queries. The memory belongs to the host and is limited by it, so a program can have more
//! of it than a device has.

mod mem_advise;

use std::sync::LazyLock;

use katydid_cuda_sys::CUresult;
use katydid_driver_rules::memory::{self as rules, check_managed};

pub(crate) use mem_advise::{Advice, AdviceTarget, advise, attribute, check, forget, prefetch};

use crate::context::state::Context;
use crate::ffi::Outcome;
use crate::memory::device_memory::DeviceMemory;
use crate::memory::pages::PAGE_BYTES;
use crate::memory::space::{self, RangeKind, Region};
use crate::process::settings;

/// The arena of managed memory, after those of the devices.
static MANAGED_MEMORY: LazyLock<DeviceMemory> = LazyLock::new(|| {
    DeviceMemory::new(settings::MAX_SOFT_DEVICES, settings::MAX_SOFT_DEVICES, settings::host_memory())
});

/// Returns the host's memory as devices share it. Pools of the host take from it too.
pub(crate) fn memory() -> &'static DeviceMemory {
    &MANAGED_MEMORY
}

/// `cuMemAllocManaged`: for use by all streams, or by the host alone until the program attaches it to a stream.
pub(crate) fn allocate(context: &Context, size: u64, flags: u32) -> Outcome<u64> {
    check_managed(size, flags)?;
    allocate_aligned(context, size, 1)
}

/// Allocates managed memory for `context`, also for variables of modules. It shares no page with other memory, because advice
/// applies to whole pages and ends with them.
pub(crate) fn allocate_aligned(context: &Context, size: u64, align: u64) -> Outcome<u64> {
    let pages = size.checked_next_multiple_of(PAGE_BYTES).ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
    let at = memory().allocate(pages, align.max(PAGE_BYTES))?;
    let region = Region::new(at, size.max(1), RangeKind::Managed, context.device.ordinal, context.handle);
    space::write().insert(region);
    Ok(at)
}

/// Checks `cuStreamAttachMemAsync`, without effect: every device and the host may always use the memory.
pub(crate) fn check_attachment(address: u64, length: u64, flags: u32, is_made: impl FnOnce() -> bool) -> Outcome {
    let region = space::find(address).filter(|region| region.kind == RangeKind::Managed);
    let region = region.ok_or(CUresult::ERROR_INVALID_VALUE)?;
    rules::check_attachment((address, length), (region.start, region.size), flags, is_made)
}

//! Managed memory: blocks of the pinned arena, which program and GPU use at one address.
//!
//! On a shared-memory link both see the same pages at any time. On a stream link every block is pushed before a launch,
//! because kernels follow pointers that no parameter shows, and writes of the GPU are pulled back at synchronizations. So
//! the program must synchronize before it reads, as the device's attributes say (no concurrent access). Advice and
//! prefetches are checked and kept here: the memory stays where both reach it.
#![expect(unsafe_code, reason = "reads and writes arrays of C callers")]

use std::ffi::c_void;

use katydid_client::regions::{Region, RegionKind};
use katydid_cuda_sys::{CUdevice, CUdeviceptr, CUmemLocation, CUresult, CUstream};
use katydid_driver_rules::caller::check_no_flags;
use katydid_driver_rules::mem_advise::{Advice, AdviceTarget, Book};
use katydid_driver_rules::memory::{check_attachment, check_managed, check_range_attributes, range_answers};
use katydid_wire::message::{kdManagedCreate, kdManagedDestroy};

use crate::context::{device, stack};
use crate::ffi::arguments::out;
use crate::ffi::handle::object;
use crate::memory::counts::MANAGED_BLOCKS;
use crate::memory::device_backing::in_need;
use crate::memory::host_backing::HostBacking;
use crate::memory::registration::PAGE_BYTES;
use crate::memory::{pinned, system_atomics};
use crate::process::session::shim;
use crate::sync::stream;

/// The program's advice on ranges.
static ADVICE_BOOK: Book = Book::new();
/// Number of devices that advice can name.
fn devices() -> Result<usize, CUresult> {
    Ok(device::all()?.len())
}

/// # Safety
///
/// `target` is null or writable.
pub(crate) unsafe fn allocate(target: *mut CUdeviceptr, size: usize, flags: u32) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    let context = stack::active()?.owner();
    crate::graph::model::forbid()?;
    check_managed(size as u64, flags)?;
    let shim = shim()?;
    let pinned = pinned::get().ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
    let pages = (size as u64).checked_next_multiple_of(PAGE_BYTES).ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
    let address = pinned.arena.allocate(pages, PAGE_BYTES, &HostBacking)?;
    hold(context.device, (address, pages), context.wire())?;
    shim.regions.insert(address, size as u64, RegionKind::Managed, context.device, context.slot.handle);
    count();
    target.write(address);
    Ok(())
}

/// Answers `cuMemFree` for a managed block: waits for the GPU, as the driver does, then frees it.
pub(crate) fn free(address: CUdeviceptr) -> Result<(), CUresult> {
    let shim = shim()?;
    let region = shim.regions.remove(address, |region| region.kind == RegionKind::Managed);
    let region = region.ok_or(CUresult::ERROR_INVALID_VALUE)?;
    forget(&region);
    let pinned = pinned::get().ok_or(CUresult::ERROR_INVALID_VALUE)?;
    pinned.forget(&region)?;
    let_go(address)?;
    pinned.arena.free(address, shim.session.enqueued()).map(drop).map_err(|_| CUresult::ERROR_INVALID_VALUE)
}

/// Counts a new block of the arena as memory of a device: in a context by wire id or, with 0, in none. If the device has no
/// room for it, the block returns to the arena.
pub(crate) fn hold(ordinal: u32, (address, size): (u64, u64), context: u32) -> Result<(), CUresult> {
    let shim = shim()?;
    let held = in_need(ordinal, size, || shim.session.call(context, &kdManagedCreate { address, size }));
    held.map(drop).inspect_err(|_| {
        if let Some(pinned) = pinned::get() {
            let _ = pinned.arena.free(address, 0);
        }
    })
}

/// Ends the count of a block, before another one can have its address.
pub(crate) fn let_go(address: u64) -> Result<(), CUresult> {
    shim()?.session.enqueue(stack::wire().unwrap_or(0), &kdManagedDestroy { address })
}

/// Counts one more managed block.
pub(crate) fn count() {
    MANAGED_BLOCKS.begin();
    system_atomics::warn();
}

/// Forgets advice and count of a block.
pub(crate) fn forget(region: &Region) {
    ADVICE_BOOK.forget(region.start, region.size);
    MANAGED_BLOCKS.end();
}

/// Refuses ranges that are not wholly in one managed block.
pub(crate) fn check(start: u64, size: u64) -> Result<(), CUresult> {
    let region = shim()?.regions.find(start).filter(Region::is_managed);
    let inside = region.is_some_and(|region| size > 0 && region.holds(start, size));
    if inside { Ok(()) } else { Err(CUresult::ERROR_INVALID_VALUE) }
}

/// Returns the target of advice for a location.
pub(crate) fn target(location: CUmemLocation) -> Result<AdviceTarget, CUresult> {
    AdviceTarget::of_location(location, devices()?)
}

/// Stores the target of a prefetch for a checked range.
pub(crate) fn note_prefetch(start: u64, size: u64, target: AdviceTarget) {
    ADVICE_BOOK.prefetch(start, size, target);
}

/// Stores advice, which queries return.
pub(crate) fn advise(start: CUdeviceptr, size: usize, advice: u32, ordinal: CUdevice) -> Result<(), CUresult> {
    stack::active()?;
    check(start, size as u64)?;
    ADVICE_BOOK.advise(start, size as u64, Advice::with_ordinal(advice, ordinal, devices()?)?);
    Ok(())
}

/// Stores advice for a location, which queries return.
pub(crate) fn advise_at(start: CUdeviceptr, size: usize, advice: u32, location: CUmemLocation) -> Result<(), CUresult> {
    stack::active()?;
    check(start, size as u64)?;
    ADVICE_BOOK.advise(start, size as u64, Advice::with_location(advice, location, devices()?)?);
    Ok(())
}

/// Stores the target of a prefetch.
pub(crate) fn prefetch(start: CUdeviceptr, size: usize, ordinal: CUdevice, stream: CUstream) -> Result<(), CUresult> {
    stack::active()?;
    stream::wire(stream)?;
    let target = AdviceTarget::of_ordinal(ordinal, devices()?)?;
    check(start, size as u64)?;
    ADVICE_BOOK.prefetch(start, size as u64, target);
    Ok(())
}

/// Stores the target of a prefetch to a location; there are no flags.
pub(crate) fn prefetch_to(
    start: CUdeviceptr,
    size: usize,
    location: CUmemLocation,
    flags: u32,
    stream: CUstream,
) -> Result<(), CUresult> {
    stack::active()?;
    stream::wire(stream)?;
    check_no_flags(flags.into())?;
    let target = AdviceTarget::of_location(location, devices()?)?;
    check(start, size as u64)?;
    ADVICE_BOOK.prefetch(start, size as u64, target);
    Ok(())
}

/// Answers a query of one attribute. Values have 4 bytes each; only the list of accessors has room for several.
///
/// # Safety
///
/// `data` is null or writable for `size` bytes.
pub(crate) unsafe fn range_attribute(
    data: *mut c_void,
    size: usize,
    attribute: u32,
    start: CUdeviceptr,
    length: usize,
) -> Result<(), CUresult> {
    let answers = range_answers(data, size)?;
    check(start, length as u64)?;
    let values = ADVICE_BOOK.attribute(start, length as u64, attribute, answers)?;
    for (at, value) in values.into_iter().enumerate() {
        // SAFETY: the book gives no more values than there is room for.
        unsafe { data.cast::<i32>().add(at).write_unaligned(value) };
    }
    Ok(())
}

/// Answers queries one after the other; the first failure ends the call.
///
/// # Safety
///
/// The arrays are null or have `count` entries, and each buffer the size that is given for it.
pub(crate) unsafe fn range_attributes(
    data: *mut *mut c_void,
    sizes: *mut usize,
    attributes: *mut u32,
    count: usize,
    start: CUdeviceptr,
    length: usize,
) -> Result<(), CUresult> {
    check_range_attributes(data, sizes, attributes, count)?;
    for at in 0..count {
        // SAFETY: below `count`, by the contract.
        let (data, size, attribute) = unsafe {
            (data.add(at).read_unaligned(), sizes.add(at).read_unaligned(), attributes.add(at).read_unaligned())
        };
        // SAFETY: the buffer has its size, by the contract.
        unsafe { range_attribute(data, size, attribute, start, length) }?;
    }
    Ok(())
}

/// Only checks: host and devices may use the memory at any time that the link allows.
pub(crate) fn attach(stream: CUstream, address: CUdeviceptr, length: usize, flags: u32) -> Result<(), CUresult> {
    stack::active()?;
    stream::wire(stream)?;
    let region = shim()?.regions.find(address).filter(Region::is_managed);
    let region = region.ok_or(CUresult::ERROR_INVALID_VALUE)?;
    check_attachment((address, length as u64), (region.start, region.size), flags, || object(stream).is_ok())
}

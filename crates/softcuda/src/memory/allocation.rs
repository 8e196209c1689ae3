//! `cuMemAlloc` and `cuMemFree` over the memory of devices.

use std::sync::Arc;

use katydid_cuda_sys::{CUresult, limit};
use katydid_driver_rules::memory::{check_pitched, pitched};
use katydid_ptx_exec::DeviceHeap;

use crate::context::state::Context;
use crate::context::{contexts, stack};
use crate::ffi::Outcome;
use crate::memory::device_heap::HeapState;
use crate::memory::device_memory::DeviceMemory;
use crate::memory::space::{self, RangeKind, Region};
use crate::memory::{managed, pool};
use crate::process::attributes::PITCH_ALIGN_BYTES;
use crate::process::device;
use crate::sync::job::StreamJob;
use crate::sync::stream::Stream;

/// `cuMemAlloc` in `context`.
pub(crate) fn allocate(context: &Context, size: u64) -> Outcome<u64> {
    if size == 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    allocate_aligned(context, size, 1)
}

/// Allocates memory for `context`, also for variables of modules.
pub(crate) fn allocate_aligned(context: &Context, size: u64, align: u64) -> Outcome<u64> {
    allocate_as(context, size, RangeKind::Device, |memory| memory.allocate(size, align))
}

/// Allocates memory of a kind for `context`, at the address that `find` chooses.
pub(crate) fn allocate_as(
    context: &Context,
    size: u64,
    kind: RangeKind,
    find: impl Fn(&DeviceMemory) -> Outcome<u64>,
) -> Outcome<u64> {
    let memory = &context.device.memory;
    let at = find(memory).or_else(|_| {
        pool::trim_device(context.device.ordinal);
        find(memory)
    })?;
    let region = Region::new(at, size.max(1), kind, context.device.ordinal, context.handle);
    space::write().insert(region);
    Ok(at)
}

/// `cuMemAllocPitch`: returns address and pitch.
pub(crate) fn allocate_pitch(context: &Context, width: u64, height: u64, element: u32) -> Outcome<(u64, u64)> {
    check_pitched(width, height, element)?;
    let (pitch, size) = pitched(width, height, PITCH_ALIGN_BYTES)?;
    Ok((allocate(context, size)?, pitch))
}

/// `cuMemFree`: waits for the work of the memory's context, then frees. Memory of a pool belongs to no context, so it waits for
/// the current one's work.
pub(crate) fn free(at: u64) -> Outcome {
    if at == 0 {
        return Ok(());
    }
    let region = space::starting_at(at)?;
    let context = match region.kind {
        RangeKind::Device | RangeKind::Managed => contexts::living(region.context),
        RangeKind::Pooled { .. } => stack::active().ok(),
        _ => return Err(CUresult::ERROR_INVALID_VALUE),
    };
    if let Some(context) = context {
        context.drain();
    }
    if matches!(region.kind, RangeKind::Pooled { .. }) {
        return pool::free_now(&region);
    }
    // Another thread may have freed it meanwhile.
    let region = space::write().remove_same(at, region.id).ok_or(CUresult::ERROR_INVALID_VALUE)?;
    space::quiet();
    give_back(&region)
}

/// `cuMemFreeAsync`: calls lose access to the memory at once. It is freed when `stream` gets there.
pub(crate) fn free_async(at: u64, stream: &Arc<Stream>) -> Outcome {
    if at == 0 {
        return Ok(());
    }
    let region = space::starting_at(at)?;
    match region.kind {
        RangeKind::Pooled { .. } => return pool::free_async(&region, stream),
        RangeKind::Device => {}
        _ => return Err(CUresult::ERROR_INVALID_VALUE),
    }
    space::write().leave(at);
    // No wait is necessary: the arena stays mapped, so late work of another stream reads zeroes.
    let job = StreamJob::always(move |_| {
        let gone = space::write().remove_same(at, region.id);
        gone.map_or(Ok(()), |region| give_back(&region))
    });
    stream.submit(job.short()).map(drop)
}

/// Returns the memory of a range that has left the space to the pool or device that was charged.
pub(crate) fn give_back(region: &Region) -> Outcome {
    match region.kind {
        RangeKind::Managed => {
            managed::forget(region.start, region.size);
            managed::memory().release(region.start);
        }
        // Another process owns it and frees it.
        RangeKind::Opened(_) => {}
        _ => device::get(region.device)?.memory.release(region.start),
    }
    Ok(())
}

/// `cuMemGetAddressRange`: returns start and size. An address in no range, or in registered memory, fails with `NOT_FOUND`.
pub(crate) fn address_range(address: u64) -> Outcome<(u64, u64)> {
    let is_ours = |region: &Region| !matches!(region.kind, RangeKind::Registered(_));
    let region = space::find(address).filter(is_ours).ok_or(CUresult::ERROR_NOT_FOUND)?;
    Ok((region.start, region.size))
}

/// Allocates in a heap of `context` for device code. Returns `None` when the heap, or the device, is full.
pub(crate) fn allocate_in_heap(context: &Context, pool: DeviceHeap, size: u64, align: u64) -> Option<u64> {
    let malloc_bytes = || context.limits.get(limit::MALLOC_HEAP_SIZE).ok();
    let reserve = |bytes| allocate_as(context, bytes, RangeKind::Heap, |memory| memory.allocate_last(bytes)).ok();
    context.heaps.allocate(pool, (size, align), malloc_bytes, reserve)
}

/// Recreates a heap of `context` from its saved state.
pub(crate) fn make_heap(context: &Context, state: &HeapState) -> Outcome {
    let reserve = |start, size| allocate_as(context, size, RangeKind::Heap, |memory| memory.allocate_at(start, size));
    context.heaps.make(state, reserve)
}

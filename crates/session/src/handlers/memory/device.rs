//! Device memory: growth, shrinking, free bytes.

#![expect(unsafe_code, reason = "calls the driver")]

use std::sync::Arc;

use katydid_cuda_sys::CUresult;
use katydid_driver::Driver;
use katydid_wire::frame::FrameHead;
use katydid_wire::message::{
    kdDeviceGrow, kdDeviceGrowReply, kdDeviceInfo, kdDeviceInfoReply, kdDeviceShrink, kdDeviceShrinkReply,
    kdManagedCreate, kdManagedCreateReply, kdManagedDestroy, kdPeerAtomics, kdPeerAtomicsReply, kdReclaim,
    kdReclaimDevices, kdReclaimDevicesReply, kdReclaimDone, kdReclaimReply, kdReclaimWait,
};

use crate::calls::fault::Fault;
use crate::device::ask::memory_info;
use crate::handlers::{CallResult, EnqueueResult, ExecutorResult, success};
use crate::state::Session;

/// Backs a range of a device arena. `ERROR_NOT_READY`: there will be memory when a snapshot has released it.
pub(crate) fn kdDeviceGrow(
    session: &mut Session,
    _head: &FrameHead,
    message: kdDeviceGrow,
) -> CallResult<kdDeviceGrowReply> {
    let driver = Arc::clone(&session.shared.driver);
    let (device, address, size) = (message.device, message.address, message.size);
    let grown = session.device.grow(&driver, device, address, size);
    match grown {
        // A snapshot held memory, and has released it now.
        Err(Fault::Cuda(CUresult::ERROR_OUT_OF_MEMORY)) if session.make_way()? => {
            session.device.grow(&driver, device, address, size)?;
        }
        grown => grown?,
    }
    session.shared.usage.set_memory(session.device.backed_bytes());
    success(kdDeviceGrowReply {})
}

/// Unmaps ranges. Unmapping itself does not wait for the GPU, so running work is waited for first.
pub(crate) fn kdDeviceShrink(
    session: &mut Session,
    _head: &FrameHead,
    message: kdDeviceShrink,
) -> ExecutorResult<kdDeviceShrinkReply> {
    let gone = session.device.shrink(message.device, message.address, message.size)?;
    gone.iter().for_each(|(address, size)| session.shares.end_in(*address, *size));
    session.shared.usage.set_memory(session.device.backed_bytes());
    Ok(Box::new(move |driver| (unmap(driver, &gone), kdDeviceShrinkReply {})))
}

fn unmap(driver: &Driver, ranges: &[(u64, u64)]) -> CUresult {
    // SAFETY: takes nothing. A context in error has nothing running, so its code is of no matter here.
    let _ = unsafe { driver.cuCtxSynchronize() };
    for (address, size) in ranges {
        // SAFETY: the range was mapped as a whole by a growth, and has left the tables.
        let status = unsafe { driver.cuMemUnmap(*address, *size as usize) };
        if status != CUresult::SUCCESS {
            return status;
        }
    }
    CUresult::SUCCESS
}

/// Counts managed memory, which the program has allocated in the frame's context or, without one, in none.
pub(crate) fn kdManagedCreate(
    session: &mut Session,
    head: &FrameHead,
    message: kdManagedCreate,
) -> CallResult<kdManagedCreateReply> {
    let context = if head.context == 0 { 0 } else { session.owner(head.context) };
    session.hold_managed(message.address, message.size, context)?;
    success(kdManagedCreateReply {})
}

/// Ends the count of managed memory.
pub(crate) fn kdManagedDestroy(session: &mut Session, _head: &FrameHead, message: kdManagedDestroy) -> EnqueueResult {
    session.forget_managed(message.address)?;
    Ok(CUresult::SUCCESS)
}

/// Has other sessions give back idle memory, and waits for that. It answers out-of-memory at once where that cannot help:
/// the limit leaves less, the device has less in all, or no thread can be asked.
pub(crate) fn kdReclaim(
    session: &mut Session,
    _head: &FrameHead,
    message: kdReclaim,
) -> ExecutorResult<kdReclaimReply> {
    let device = u32::try_from(message.device).map_err(|_| CUresult::ERROR_INVALID_DEVICE)?;
    let total = session.facts.devices.get(device as usize).map_or(0, |facts| facts.total_memory);
    if message.size > session.device.bytes_left().min(total) {
        return Err(CUresult::ERROR_OUT_OF_MEMORY.into());
    }
    let reclaim = session.reclaim();
    let number = reclaim.send_request(device).ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
    Ok(Box::new(move |driver| {
        reclaim.wait(number, || memory_info(driver).map_or(0, |(free, _)| free));
        (CUresult::SUCCESS, kdReclaimReply {})
    }))
}

/// Notes that the program has idle memory on a device.
pub(crate) fn kdReclaimWait(session: &mut Session, _head: &FrameHead, message: kdReclaimWait) -> EnqueueResult {
    if message.device as usize >= session.facts.devices.len() {
        return Err(CUresult::ERROR_INVALID_DEVICE.into());
    }
    session.shared.reclaim.is_idle(message.device);
    Ok(CUresult::SUCCESS)
}

/// Returns the devices on which other sessions need memory.
pub(crate) fn kdReclaimDevices(
    session: &mut Session,
    _head: &FrameHead,
    _message: kdReclaimDevices,
) -> CallResult<kdReclaimDevicesReply> {
    success(kdReclaimDevicesReply { devices: session.shared.reclaim.take_requested_devices() })
}

/// Notes that the program has done what a reclaim notice asked.
pub(crate) fn kdReclaimDone(session: &mut Session, _head: &FrameHead, message: kdReclaimDone) -> EnqueueResult {
    session.shared.reclaim.on_notice_done(message.number);
    Ok(CUresult::SUCCESS)
}

/// Answers `cuMemGetInfo` in the current context, within the session's limit.
pub(crate) fn kdDeviceInfo(
    session: &mut Session,
    _head: &FrameHead,
    _message: kdDeviceInfo,
) -> CallResult<kdDeviceInfoReply> {
    let (free, total) = memory_info(session.driver())?;
    let free = free + session.snapshots.held_bytes();
    let (free, total) =
        (free.min(session.device.bytes_left()), session.device.limit().map_or(total, |limit| total.min(limit)));
    success(kdDeviceInfoReply { free, total })
}

/// Returns the atomics of one device on the memory of another.
pub(crate) fn kdPeerAtomics(
    session: &mut Session,
    _head: &FrameHead,
    message: kdPeerAtomics<'_>,
) -> CallResult<kdPeerAtomicsReply> {
    let operations: Vec<u32> =
        message.operations.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
    let mut answer = vec![0_u32; operations.len()];
    let (count, source, target) = (operations.len() as u32, message.source, message.target);
    let driver = session.driver();
    // SAFETY: both arrays have `count` entries.
    unsafe { driver.cuDeviceGetP2PAtomicCapabilities(answer.as_mut_ptr(), operations.as_ptr(), count, source, target) }
        .ok()?;
    success(kdPeerAtomicsReply { capabilities: answer.into_iter().flat_map(u32::to_le_bytes).collect() })
}

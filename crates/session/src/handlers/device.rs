//! Device memory: growth, shrinking, how much is left.

#![expect(unsafe_code, reason = "calls the driver")]

use std::sync::Arc;

use katydid_cuda_sys::CUresult;
use katydid_driver::Driver;
use katydid_wire::frame::FrameHead;
use katydid_wire::message::{
    kdDeviceGrow, kdDeviceGrowReply, kdDeviceInfo, kdDeviceInfoReply, kdDeviceShrink, kdDeviceShrinkReply,
    kdPeerAtomics, kdPeerAtomicsReply,
};

use super::{Called, Detached, done};
use crate::fault::Fault;
use crate::session::Session;

/// Backs a range of a device arena. `ERROR_NOT_READY`: there will be memory when a snapshot has given it back.
pub(crate) fn kdDeviceGrow(
    session: &mut Session,
    _head: &FrameHead,
    message: kdDeviceGrow,
) -> Called<kdDeviceGrowReply> {
    let driver = Arc::clone(&session.shared.driver);
    let (device, address, size) = (message.device, message.address, message.size);
    let grown = session.device.grow(&driver, device, address, size);
    match grown {
        // A snapshot held memory: now it does not.
        Err(Fault::Cuda(CUresult::ERROR_OUT_OF_MEMORY)) if session.make_way()? => {
            session.device.grow(&driver, device, address, size)?;
        }
        grown => grown?,
    }
    session.shared.usage.set_device_memory(session.device.held());
    done(kdDeviceGrowReply {})
}

/// Gives ranges back. Unmapping does not wait for the GPU by itself, so what runs is waited for first.
pub(crate) fn kdDeviceShrink(
    session: &mut Session,
    _head: &FrameHead,
    message: kdDeviceShrink,
) -> Detached<kdDeviceShrinkReply> {
    let gone = session.device.shrink(message.device, message.address, message.size)?;
    gone.iter().for_each(|(address, size)| session.shares.end_in(*address, *size));
    session.shared.usage.set_device_memory(session.device.held());
    Ok(Box::new(move |driver| (unmap(driver, &gone), kdDeviceShrinkReply {})))
}

fn unmap(driver: &Driver, ranges: &[(u64, u64)]) -> CUresult {
    // SAFETY: takes nothing. A context in error has nothing running, so its code is of no matter here.
    let _ = unsafe { driver.cuCtxSynchronize() };
    for (address, size) in ranges {
        // SAFETY: the range was mapped as a whole by a growth, and has left the books.
        let status = unsafe { driver.cuMemUnmap(*address, *size as usize) };
        if status != CUresult::SUCCESS {
            return status;
        }
    }
    CUresult::SUCCESS
}

/// `cuMemGetInfo` of the current context, within the session's quota.
pub(crate) fn kdDeviceInfo(
    session: &mut Session,
    _head: &FrameHead,
    _message: kdDeviceInfo,
) -> Called<kdDeviceInfoReply> {
    let (mut free, mut total) = (0_usize, 0_usize);
    // SAFETY: both outputs are locals.
    unsafe { session.driver().cuMemGetInfo_v2(&raw mut free, &raw mut total) }.ok()?;
    let free = free as u64 + session.snapshots.held();
    let (free, total) = (free.min(session.device.left()), (total as u64).min(session.device.quota()));
    done(kdDeviceInfoReply { free, total })
}

/// Atomics of one device on the memory of another.
pub(crate) fn kdPeerAtomics(
    session: &mut Session,
    _head: &FrameHead,
    message: kdPeerAtomics<'_>,
) -> Called<kdPeerAtomicsReply> {
    let operations: Vec<u32> =
        message.operations.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
    let mut told = vec![0_u32; operations.len()];
    let (count, source, target) = (operations.len() as u32, message.source, message.target);
    let driver = session.driver();
    // SAFETY: both arrays have `count` entries.
    unsafe { driver.cuDeviceGetP2PAtomicCapabilities(told.as_mut_ptr(), operations.as_ptr(), count, source, target) }
        .ok()?;
    done(kdPeerAtomicsReply { capabilities: told.into_iter().flat_map(u32::to_le_bytes).collect() })
}

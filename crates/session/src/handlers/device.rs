//! Device memory: growth, shrinking, how much is left.

#![expect(unsafe_code, reason = "calls the driver")]

use std::sync::Arc;

use katydid_cuda_sys::CUresult;
use katydid_driver::Driver;
use katydid_wire::frame::FrameHead;
use katydid_wire::message::{
    kdDeviceGrow, kdDeviceGrowReply, kdDeviceInfo, kdDeviceInfoReply, kdDeviceShrink, kdDeviceShrinkReply,
};

use super::{Called, Detached, done};
use crate::session::Session;

/// Backs a range of a device arena.
pub(crate) fn kdDeviceGrow(
    session: &mut Session,
    _head: &FrameHead,
    message: kdDeviceGrow,
) -> Called<kdDeviceGrowReply> {
    let driver = Arc::clone(&session.shared.driver);
    session.device.grow(&driver, message.device, message.address, message.size)?;
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
    let (free, total) = ((free as u64).min(session.device.left()), (total as u64).min(session.device.quota()));
    done(kdDeviceInfoReply { free, total })
}

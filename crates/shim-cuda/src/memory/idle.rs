//! Idle device memory, which the program has freed: kept for its next allocation, and given back when another program needs
//! it.
//!
//! Natively the driver has it back at once. Here a thread waits for the worker to ask. It starts when much memory is idle
//! for the first time, because the program itself may make no call for hours. It sleeps until the worker notifies it.

use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use katydid_client::memory::Backing;
use katydid_client::{life, threads};
use katydid_cuda_sys::CUresult;
use katydid_wire::message::{kdDeviceShrink, kdReclaimDevices, kdReclaimDone, kdReclaimWait};

use crate::context::device::{self, Device};
use crate::context::{completion, record, stack};
use crate::process::session::{Shim, shim};

/// Idle bytes that make the thread worth its cost.
const MIN_IDLE_BYTES: u64 = 32 << 20;
/// Stack of the thread, in bytes: it calls no function of the program.
const IDLE_STACK_BYTES: usize = 256 << 10;

/// A device's arena as the shim itself uses it, outside of any call.
struct IdleBacking {
    ordinal: u32,
    position: i32,
}

impl Backing for IdleBacking {
    type Code = CUresult;

    fn grow(&self, _range: &Range<u64>) -> Result<(), CUresult> {
        Err(CUresult::ERROR_NOT_SUPPORTED)
    }

    fn shrink(&self, range: &Range<u64>) -> Result<(), CUresult> {
        shrink(self.position, range)
    }

    fn synchronize(&self) -> Result<u64, CUresult> {
        completion::synchronize_quietly(self.ordinal)
    }
}

/// Gives a range back to the worker. The result is the same in any context, and without one.
pub(crate) fn shrink(device: i32, range: &Range<u64>) -> Result<(), CUresult> {
    let message = kdDeviceShrink { device, address: range.start, size: range.end - range.start };
    shim()?.session.call(stack::wire().unwrap_or(0), &message).map(drop)
}

/// Frees a block of a device. It is used again when the GPU has passed `epoch` messages.
///
/// # Errors
///
/// `ERROR_INVALID_VALUE` for an address of no block.
pub(crate) fn free(device: &Device, address: u64, epoch: u64) -> Result<(), CUresult> {
    let unused = device.memory.free(address, epoch).map_err(|_| CUresult::ERROR_INVALID_VALUE)?;
    note(device, unused);
    Ok(())
}

/// Tells the worker when a device has much memory that the program owns and does not use.
fn note(device: &Device, unused: u64) {
    if unused >= MIN_IDLE_BYTES
        && !device.is_idle.load(Ordering::Relaxed)
        && life::is_of_this_process()
        && !device.is_idle.swap(true, Ordering::Relaxed)
    {
        // Without the thread the memory stays here, as if it were in use.
        let _ = announce(device);
    }
}

#[cold]
fn announce(device: &Device) -> Result<(), CUresult> {
    static THREAD: OnceLock<bool> = OnceLock::new();
    let (shim, devices) = (shim()?, device::all()?);
    let is_there =
        *THREAD.get_or_init(|| threads::start("katydid-idle", IDLE_STACK_BYTES, move || serve(shim, devices)).is_ok());
    let context = record::any_on(device.position)?;
    if is_there { shim.session.enqueue(context, &kdReclaimWait { device: device.position as u32 }) } else { Ok(()) }
}

/// Answers the worker's reclaim notices until the session ends.
fn serve(shim: &Shim, devices: &[Device]) {
    while let Ok(number) = shim.session.next_reclaim_notice() {
        let Ok(reply) = shim.session.ask(0, &kdReclaimDevices {}) else { return };
        for (ordinal, device) in devices.iter().enumerate() {
            if reply.devices & 1_u32.checked_shl(device.position as u32).unwrap_or(0) != 0 {
                // Memory that cannot be given back stays: the worker hears that this is all.
                let _ = give_back(ordinal as u32);
            }
        }
        if shim.session.enqueue(0, &kdReclaimDone { number }).is_err() {
            return;
        }
    }
}

/// Gives back a device's idle memory; returns the bytes.
pub(crate) fn give_back(ordinal: u32) -> Result<u64, CUresult> {
    let device = &device::all()?[ordinal as usize];
    Ok(device.memory.give_back(&IdleBacking { ordinal, position: device.position as i32 }))
}

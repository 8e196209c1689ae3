//! Memory of devices that the program has freed: kept for its next allocation, and given back when another program needs it.
//!
//! Natively it would be the driver's at once. One thread listens for that, from when much has lain idle for the first time:
//! the program itself may make no call for hours. It sleeps until the worker notifies it.

use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use katydid_client::memory::Backing;
use katydid_client::threads;
use katydid_cuda_sys::CUresult;
use katydid_wire::message::{kdDeviceShrink, kdReclaimDevices, kdReclaimDone, kdReclaimWait};

use crate::context::device::{self, Device};
use crate::context::{completion, record, stack};
use crate::process::session::{Shim, shim};

/// Idle bytes from which on a thread is worth its cost.
const MIN_IDLE_BYTES: u64 = 32 << 20;
/// It calls no function of the program.
const IDLE_STACK_BYTES: usize = 256 << 10;

/// A device's arena as this library itself uses it, outside of any call.
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

/// Gives a range back. That means the same in any context, and without one.
pub(crate) fn shrink(device: i32, range: &Range<u64>) -> Result<(), CUresult> {
    let message = kdDeviceShrink { device, address: range.start, size: range.end - range.start };
    shim()?.session.call(stack::wire().unwrap_or(0), &message).map(drop)
}

/// Frees a block of a device, which is used again when the GPU has passed `epoch` messages.
///
/// # Errors
///
/// `ERROR_INVALID_VALUE` for what is no block.
pub(crate) fn free(device: &Device, address: u64, epoch: u64) -> Result<(), CUresult> {
    let unused = device.memory.free(address, epoch).map_err(|_| CUresult::ERROR_INVALID_VALUE)?;
    note(device, unused);
    Ok(())
}

/// Notes how many bytes of a device's memory are the program's and not in use.
fn note(device: &Device, unused: u64) {
    if unused >= MIN_IDLE_BYTES
        && !device.is_idle.load(Ordering::Relaxed)
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

/// Does what the worker asks for until the session ends.
fn serve(shim: &Shim, devices: &[Device]) {
    while let Ok(number) = shim.session.next_reclaim_request() {
        let Ok(reply) = shim.session.ask(0, &kdReclaimDevices {}) else { return };
        for (ordinal, device) in devices.iter().enumerate() {
            if reply.devices & 1_u32.checked_shl(device.position as u32).unwrap_or(0) != 0 {
                // What cannot be given back stays: the worker hears that this is all.
                let _ = give_back(ordinal as u32);
            }
        }
        if shim.session.enqueue(0, &kdReclaimDone { number }).is_err() {
            return;
        }
    }
}

/// Gives back what lies idle of a device; how many bytes.
pub(crate) fn give_back(ordinal: u32) -> Result<u64, CUresult> {
    let device = &device::all()?[ordinal as usize];
    Ok(device.memory.give_back(&IdleBacking { ordinal, position: device.position as i32 }))
}

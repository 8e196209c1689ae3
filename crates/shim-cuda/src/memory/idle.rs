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
use katydid_wire::message::{kdIdle, kdReclaimDevices, kdReclaimDone};

use crate::context::contexts;
use crate::context::device::Device;
use crate::memory::allocation;
use crate::process::session::{Shim, shim};

/// So much is worth a thread.
const MUCH: u64 = 32 << 20;
/// It calls no function of the program.
const STACK: usize = 256 << 10;

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
        allocation::shrink(self.position, range)
    }

    fn settle(&self) -> Result<u64, CUresult> {
        contexts::settle_quietly(self.ordinal)
    }
}

/// So many bytes of a device's memory are the program's and not in use.
pub(crate) fn note(device: &Device, unused: u64) {
    if unused >= MUCH && !device.is_idle.load(Ordering::Relaxed) && !device.is_idle.swap(true, Ordering::Relaxed) {
        // Without the thread the memory stays here, as if it were in use.
        let _ = announce(device);
    }
}

#[cold]
fn announce(device: &Device) -> Result<(), CUresult> {
    static THREAD: OnceLock<bool> = OnceLock::new();
    let shim = shim()?;
    let is_there = *THREAD.get_or_init(|| threads::start("katydid-idle", STACK, move || serve(shim)).is_ok());
    let context = contexts::any_on(device.position)?;
    if is_there { shim.session.enqueue(context, &kdIdle { device: device.position as u32 }) } else { Ok(()) }
}

/// Does what the worker asks for until the session ends.
fn serve(shim: &Shim) {
    while let Ok(number) = shim.session.next_reclaim_request() {
        let Ok(wanted) = shim.session.ask(0, &kdReclaimDevices {}) else { return };
        for (ordinal, device) in shim.devices.iter().enumerate() {
            if wanted.devices & 1_u32.checked_shl(device.position as u32).unwrap_or(0) != 0 {
                // What cannot be given back is not: the worker hears that this is all.
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
    let device = &shim()?.devices[ordinal as usize];
    Ok(device.memory.give_back(&IdleBacking { ordinal, position: device.position as i32 }))
}

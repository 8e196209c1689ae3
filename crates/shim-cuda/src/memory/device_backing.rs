//! The memory behind the arenas of devices: the worker's driver backs it, and idle memory is returned when memory is short.

use std::ops::Range;

use katydid_client::memory::{Backing, retry_until_timeout};
use katydid_cuda_sys::CUresult;
use katydid_wire::message::{kdDeviceGrow, kdReclaim};

use crate::context::{completion, device, stack};
use crate::memory::idle;
use crate::process::session::shim;

/// A device as the backing of its arena.
pub(crate) struct DeviceBacking {
    pub(crate) ordinal: u32,
}

impl DeviceBacking {
    fn position(&self) -> Result<i32, CUresult> {
        Ok(device::all()?[self.ordinal as usize].position as i32)
    }
}

impl Backing for DeviceBacking {
    type Code = CUresult;

    fn grow(&self, range: &Range<u64>) -> Result<(), CUresult> {
        let (device, size) = (self.position()?, range.end - range.start);
        let message = kdDeviceGrow { device, address: range.start, size };
        shim()?.session.call(stack::wire()?, &message).map(drop)
    }

    fn shrink(&self, range: &Range<u64>) -> Result<(), CUresult> {
        idle::shrink(self.position()?, range)
    }

    fn request_reclaim(&self, bytes: u64) -> bool {
        let request_reclaim =
            || shim()?.session.ask(stack::wire()?, &kdReclaim { device: self.position()?, size: bytes });
        request_reclaim().is_ok()
    }

    fn synchronize(&self) -> Result<u64, CUresult> {
        completion::synchronize_device(self.ordinal)
    }
}

/// More bytes than other programs could give back: none is asked.
pub(crate) const UNKNOWN_IDLE_BYTES: u64 = u64::MAX;

/// Has the driver allocate bytes on a device. If memory is short, this retries after idle memory was returned: first this
/// program's, then that of other programs.
pub(crate) fn in_need<T>(ordinal: u32, bytes: u64, attempt: impl Fn() -> Result<T, CUresult>) -> Result<T, CUresult> {
    let is_refused = |outcome: &Result<T, CUresult>| matches!(outcome, Err(CUresult::ERROR_OUT_OF_MEMORY));
    let mut outcome = retry_until_timeout(&attempt);
    if is_refused(&outcome) && idle::give_back(ordinal)? > 0 {
        outcome = retry_until_timeout(&attempt);
    }
    if is_refused(&outcome) && (DeviceBacking { ordinal }).request_reclaim(bytes) {
        outcome = retry_until_timeout(&attempt);
    }
    outcome
}

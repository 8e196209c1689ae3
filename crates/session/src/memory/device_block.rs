//! Blocks of device memory: creation, and access for devices.

#![expect(unsafe_code, reason = "calls the driver")]

use katydid_cuda_sys::{
    CUmemAccessDesc, CUmemAllocationProp, CUmemGenericAllocationHandle, CUmemLocation, CUresult, access_flags,
    allocation_type, location_type,
};
use katydid_driver::Driver;

use crate::device::ask::ask;

/// Lets `peers` read and write memory mapped at a reserved address; unmaps it on failure.
pub(crate) fn open(driver: &Driver, peers: &[i32], address: u64, size: u64) -> Result<(), CUresult> {
    let length = size as usize;
    let access = peers.iter().map(|id| access(*id)).collect::<Vec<_>>();
    // SAFETY: the caller has mapped the range; `access` outlives the call and has as many entries as said.
    let all = unsafe { driver.cuMemSetAccess(address, length, access.as_ptr(), access.len()) };
    // A driver may refuse a peer that it reported as capable: then only the owner has access.
    // SAFETY: as above, with the first entry, which is the device itself.
    let set = all.ok().or_else(|_| unsafe { driver.cuMemSetAccess(address, length, access.as_ptr(), 1) }.ok());
    if set.is_err() {
        // SAFETY: undoes the mapping; nothing has used it.
        let _ = unsafe { driver.cuMemUnmap(address, length) };
    }
    set
}

/// Allocates new memory of `device`, not yet mapped.
pub(crate) fn create(driver: &Driver, device: i32, size: u64) -> Result<CUmemGenericAllocationHandle, CUresult> {
    make(driver, device, size, 0)
}

pub(super) fn make(
    driver: &Driver,
    device: i32,
    size: u64,
    sharing: u32,
) -> Result<CUmemGenericAllocationHandle, CUresult> {
    let location = CUmemLocation { type_: location_type::DEVICE, id: device };
    let requested = CUmemAllocationProp {
        type_: allocation_type::PINNED,
        requestedHandleTypes: sharing,
        location,
        ..Default::default()
    };
    // SAFETY: `requested` and the output outlive the call.
    ask(|out| unsafe { driver.cuMemCreate(out, size as usize, &raw const requested, 0) })
}

/// Returns a grant of reading and writing for `device`.
pub(crate) fn access(device: i32) -> CUmemAccessDesc {
    let location = CUmemLocation { type_: location_type::DEVICE, id: device };
    CUmemAccessDesc { location, flags: access_flags::READ_WRITE }
}

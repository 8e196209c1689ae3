//! Stand-ins: little memory that a rehearsal maps repeatedly at the addresses of a session.
//!
//! A driver requires mapped memory where graphs and textures refer to it, and does not read it. So a few blocks of a device
//! are mapped at all addresses, again and again. Nothing is ever copied there and no kernel runs.

#![expect(unsafe_code, reason = "calls the driver")]

use std::collections::BTreeMap;

use katydid_arena::GROWTH_GRANULE_BYTES;
use katydid_cuda_sys::{CUmemGenericAllocationHandle, CUresult};
use katydid_driver::Driver;

use crate::memory::device_block::{create, open};

/// Sizes of the blocks in bytes, the largest first. A driver maps a block whole or not at all (801 otherwise, driver
/// 580.159.04), so a range of any size needs several sizes.
const BLOCK_SIZES: [u64; 5] = [
    16 * GROWTH_GRANULE_BYTES,
    8 * GROWTH_GRANULE_BYTES,
    4 * GROWTH_GRANULE_BYTES,
    2 * GROWTH_GRANULE_BYTES,
    GROWTH_GRANULE_BYTES,
];

/// Blocks of the used devices, by device and size. The driver frees them when the process ends.
#[derive(Debug, Default)]
pub(crate) struct StandIns(BTreeMap<(i32, u64), CUmemGenericAllocationHandle>);

impl StandIns {
    /// Backs a reserved range of whole granules, and lets `peers` read and write it.
    pub(crate) fn back(
        &mut self,
        driver: &Driver,
        device: i32,
        peers: &[i32],
        address: u64,
        size: u64,
    ) -> Result<(), CUresult> {
        let mut done = 0;
        for block in BLOCK_SIZES {
            let covered = (size - done) / block * block;
            if covered == 0 {
                continue;
            }
            let mapped = self
                .block(driver, device, block)
                .and_then(|handle| map_over(driver, (handle, block), address + done, covered));
            match mapped {
                Ok(()) => done += covered,
                // Smaller blocks may do if there is no memory for this one.
                Err(_) if block > GROWTH_GRANULE_BYTES => {}
                Err(code) => {
                    unmap(driver, address, done);
                    return Err(code);
                }
            }
        }
        open(driver, peers, address, size).inspect_err(|_| unmap(driver, address, done))
    }

    fn block(&mut self, driver: &Driver, device: i32, size: u64) -> Result<CUmemGenericAllocationHandle, CUresult> {
        if let Some(handle) = self.0.get(&(device, size)) {
            return Ok(*handle);
        }
        let handle = create(driver, device, size)?;
        self.0.insert((device, size), handle);
        Ok(handle)
    }
}

/// Unmaps the first `size` bytes that were mapped at an address.
fn unmap(driver: &Driver, address: u64, size: u64) {
    if size > 0 {
        // SAFETY: undoes mappings of this module; nothing has used them.
        let _ = unsafe { driver.cuMemUnmap(address, size as usize) };
    }
}

/// Returns the bytes of a stand-in for a block of `size` bytes.
pub(crate) fn block_for(size: u64) -> u64 {
    size.min(GROWTH_GRANULE_BYTES)
}

/// Maps a block over a range of reserved addresses, as often as it takes. The range is a multiple of the block's size.
pub(crate) fn map_over(
    driver: &Driver,
    (handle, block): (CUmemGenericAllocationHandle, u64),
    address: u64,
    size: u64,
) -> Result<(), CUresult> {
    let mut done = 0;
    while done < size {
        // SAFETY: the range is reserved for the session and, by the session's tables, not mapped; the block is that long.
        let mapped = unsafe { driver.cuMemMap(address + done, block as usize, 0, handle, 0) };
        if let Err(code) = mapped.ok() {
            unmap(driver, address, done);
            return Err(code);
        }
        done += block;
    }
    Ok(())
}

//! Little memory that stands for much: what a rehearsal maps at the addresses of a session.
//!
//! A driver asks that memory is mapped where graphs and textures name it, and does not look what is there. So one block of a
//! device is mapped at all addresses, over and over. Nothing is ever copied there and no kernel runs.

#![expect(unsafe_code, reason = "calls the driver")]

use std::collections::BTreeMap;

use katydid_arena::GRANULARITY;
use katydid_cuda_sys::{CUmemGenericAllocationHandle, CUresult};
use katydid_driver::Driver;

use crate::device_memory::{create, open};

/// Bytes of a block; a device without as much has one of [`GRANULARITY`].
const BLOCK: u64 = 32 << 20;

/// A block of each device that was asked for memory, and its size. The driver frees them when the process ends.
#[derive(Debug, Default)]
pub(crate) struct StandIns(BTreeMap<i32, (CUmemGenericAllocationHandle, u64)>);

impl StandIns {
    /// Backs a reserved range of whole granules, and lets `friends` read and write it.
    pub(crate) fn back(
        &mut self,
        driver: &Driver,
        device: i32,
        friends: &[i32],
        address: u64,
        size: u64,
    ) -> Result<(), CUresult> {
        let (handle, block) = match self.0.get(&device) {
            Some(made) => *made,
            None => {
                let made = create(driver, device, BLOCK).map(|handle| (handle, BLOCK));
                let made = made.or_else(|_| create(driver, device, GRANULARITY).map(|handle| (handle, GRANULARITY)))?;
                self.0.insert(device, made);
                made
            }
        };
        map_over(driver, (handle, block), address, size)?;
        open(driver, friends, address, size)
    }
}

/// Bytes of a block that stands for one of `size` bytes of the program's own making.
pub(crate) fn block_for(size: u64) -> u64 {
    size.min(GRANULARITY)
}

/// Maps a block at a range of reserved addresses, as often as it takes.
pub(crate) fn map_over(
    driver: &Driver,
    (handle, block): (CUmemGenericAllocationHandle, u64),
    address: u64,
    size: u64,
) -> Result<(), CUresult> {
    let mut done = 0;
    while done < size {
        let part = block.min(size - done);
        // SAFETY: the range is reserved for the session and, by the books, not mapped; the block is as long as the part.
        let mapped = unsafe { driver.cuMemMap(address + done, part as usize, 0, handle, 0) };
        if let Err(code) = mapped.ok() {
            if done > 0 {
                // SAFETY: undoes the mappings above; nothing has used them.
                let _ = unsafe { driver.cuMemUnmap(address, done as usize) };
            }
            return Err(code);
        }
        done += part;
    }
    Ok(())
}

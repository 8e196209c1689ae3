//! Allocation of device memory.
//!
//! Allocation and freeing are not ordered with streams. As in the real driver, freeing waits for the context's work. All
//! functions but the query of a range need a healthy current context.

#![expect(unsafe_code, reason = "functions of the driver API take raw pointers")]

use crate::context::stack;
use crate::ffi::{MaybeOut, Out, api};
use crate::graphs;
use crate::memory::allocation;
use crate::process::state;

api! {
    /// Returns free and total memory. The free size is exact, up to rounding to 512 bytes.
    fn cuMemGetInfo_v2(free: MaybeOut<usize>, total: MaybeOut<usize>) {
        let context = stack::usable()?;
        free.set(context.device.memory.free_bytes() as usize);
        total.set(context.device.memory.capacity() as usize);
    }

    /// Allocates memory. 0 bytes fail with 1, too many with 2, both in the call.
    fn cuMemAlloc_v2(address: Out<u64>, size: usize) {
        graphs::forbid()?;
        address.set(allocation::allocate(&*stack::usable()?, size as u64)?);
    }

    /// Allocates rows that start at multiples of 512 bytes.
    fn cuMemAllocPitch_v2(address: Out<u64>, pitch: Out<usize>, width: usize, height: usize, element: u32) {
        graphs::forbid()?;
        let context = stack::usable()?;
        let (start, distance) = allocation::allocate_pitch(&context, width as u64, height as u64, element)?;
        address.set(start);
        pitch.set(distance as usize);
    }

    /// Waits for the context's work, then frees. Null is allowed; an unknown address fails with 1.
    fn cuMemFree_v2(address: u64) {
        // The address tells whose memory it is.
        if stack::handle() != 0 {
            stack::usable()?;
        }
        state::ready()?;
        graphs::forbid()?;
        if graphs::of_process().free(address)? {
            return Ok(());
        }
        allocation::free(address)?;
    }

    /// Returns the allocation around an address. An address in none fails with 500.
    fn cuMemGetAddressRange_v2(start: MaybeOut<u64>, size: MaybeOut<usize>, address: u64) {
        stack::active()?;
        let (first, bytes) = allocation::address_range(address)?;
        start.set(first);
        size.set(bytes as usize);
    }
}

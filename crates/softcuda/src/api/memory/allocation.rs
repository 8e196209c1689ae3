//! Allocation of device memory.
//!
//! Allocation and freeing are not ordered with streams: freeing waits for the context's work instead, as the real driver
//! does. Everything but the question about a range needs a current context in working order.

#![expect(unsafe_code, reason = "functions of the driver API take raw pointers")]

use crate::context::stack;
use crate::ffi::{MaybeOut, Out, api};
use crate::graphs;
use crate::memory::allocation;
use crate::process::state;

api! {
    /// Free memory is exact: what an allocation could still take, up to rounding to 512 bytes.
    fn cuMemGetInfo_v2(free: MaybeOut<usize>, total: MaybeOut<usize>) {
        let context = stack::usable()?;
        free.set(context.device.memory.free_bytes() as usize);
        total.set(context.device.memory.capacity() as usize);
    }

    /// Nothing (0 bytes) gives 1, too much gives 2, both at the call.
    fn cuMemAlloc_v2(address: Out<u64>, size: usize) {
        graphs::forbid()?;
        address.set(allocation::allocate(&*stack::usable()?, size as u64)?);
    }

    /// Rows start at multiples of 512 bytes.
    fn cuMemAllocPitch_v2(address: Out<u64>, pitch: Out<usize>, width: usize, height: usize, element: u32) {
        graphs::forbid()?;
        let context = stack::usable()?;
        let (start, distance) = allocation::allocate_pitch(&context, width as u64, height as u64, element)?;
        address.set(start);
        pitch.set(distance as usize);
    }

    /// Waits for the context's work; null is nothing to free, anything unknown gives 1.
    fn cuMemFree_v2(address: u64) {
        // The address says whose memory it is.
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

    /// An address that is in no range gives 500.
    fn cuMemGetAddressRange_v2(start: MaybeOut<u64>, size: MaybeOut<usize>, address: u64) {
        stack::active()?;
        let (first, bytes) = allocation::address_range(address)?;
        start.set(first);
        size.set(bytes as usize);
    }
}

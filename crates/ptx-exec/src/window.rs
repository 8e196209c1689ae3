//! Position in the generic address space of the spaces that are not plain memory.
//!
//! Each base has bit 47 set, where no x86-64 or AArch64 process with 47-bit user addresses can map memory. So no address of an
//! arena is mistaken for one of these. The values still fit the 48 bits that programs pack pointers in.

/// Generic address of byte 0 of the block's shared memory.
pub const SHARED_ADDRESS: u64 = 0x0000_8100_0000_0000;
/// Generic address of byte 0 of a thread's local memory; every thread sees its own bytes there.
pub const LOCAL_ADDRESS: u64 = 0x0000_8200_0000_0000;
/// Generic address of byte 0 of the kernel's parameters (read-only).
pub const PARAM_ADDRESS: u64 = 0x0000_8300_0000_0000;
/// Address of function 0 of a program; function `n` is at `FUNCTION_ADDRESS + 16 * n`. Nothing can be read there.
pub const FUNCTION_ADDRESS: u64 = 0x0000_8400_0000_0000;
/// Generic address of the memory by which blocks of a cooperative launch wait for each other. It is a window, so that a grid
/// finds it at the same address wherever it is resumed.
pub const WORKSPACE_ADDRESS: u64 = 0x0000_8500_0000_0000;
/// Number of bytes in each window: offsets into shared and local memory are 32 bits wide.
pub const GENERIC_WINDOW_BYTES: u64 = 1 << 32;

/// Returns the offset of `address` in the window at `base`, if it lies in it.
pub fn offset_in(base: u64, address: u64) -> Option<u64> {
    let offset = address.wrapping_sub(base);
    (offset < GENERIC_WINDOW_BYTES).then_some(offset)
}

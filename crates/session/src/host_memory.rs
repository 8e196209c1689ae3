//! Pinned host memory: an arena at the same address on both sides, registered with the driver block by block.
//!
//! On a shared-memory link the arena is the program's own memory; on a stream link it is memory of the worker that
//! the program pushes to and pulls from. Either way only whole pages of the arena can be named, and only registered
//! blocks are written or read. Sizes and addresses are bytes.

#![expect(unsafe_code, reason = "copies from and to memory that the program and the GPU see")]

use std::ops::Range;

use katydid_arena::Reservation;
use katydid_cuda_sys::{CUresult, host_register_flags};
use katydid_driver::Driver;
use rustix::mm::{Advice, madvise};

use crate::chunks::Chunks;
use crate::fault::{Fault, SessionError};

/// Registered blocks are whole pages.
const PAGE: u64 = 4096;

/// The pinned arena.
#[derive(Debug)]
pub struct HostMemory {
    /// Keeps the mapping alive.
    arena: Reservation,
    /// Registered blocks, with the wire id of the context they were registered in; 0 once that is gone.
    blocks: Chunks<u32>,
    /// A context went and took registrations with it.
    is_stale: bool,
    /// The program has its own view of the same pages; otherwise they are the worker's alone.
    is_shared: bool,
}

impl HostMemory {
    /// An arena that is mapped, readable and writable, over its whole length: with memory that the program shares, or
    /// with private memory.
    pub fn new(arena: Reservation, is_shared: bool) -> Self {
        Self { arena, blocks: Chunks::default(), is_stale: false, is_shared }
    }

    /// Registers a block with the driver, in the current context `context`. Memory that is not shared begins as zeros.
    ///
    /// # Errors
    ///
    /// `CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED`, what the driver says, or a session error for a range that is not
    /// whole pages of the arena.
    pub(crate) fn register(&mut self, driver: &Driver, context: u32, address: u64, size: u64) -> Result<(), Fault> {
        self.check(address, size)?;
        if !self.blocks.is_free(address, size) {
            return Err(CUresult::ERROR_HOST_MEMORY_ALREADY_REGISTERED.into());
        }
        if !self.is_shared {
            clear(address, size)?;
        }
        register(driver, address, size).ok()?;
        self.blocks.insert(address, size, context);
        Ok(())
    }

    /// Takes a block out of the books. When the answer is true, the driver knows it and the caller unregisters it.
    ///
    /// # Errors
    ///
    /// `CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED` when it is no registered block.
    pub(crate) fn unregister(&mut self, address: u64, size: u64) -> Result<bool, Fault> {
        match self.blocks.remove(address, size).as_deref() {
            Some([(_, _, context)]) => Ok(*context != 0),
            _ => Err(CUresult::ERROR_HOST_MEMORY_NOT_REGISTERED.into()),
        }
    }

    /// Registers anew, in the current context `context`, what a context that is gone took with it: the program hands
    /// the memory out again. A block that the driver refuses now is tried again after the next such end.
    pub(crate) fn restore(&mut self, driver: &Driver, context: u32) {
        if !std::mem::take(&mut self.is_stale) {
            return;
        }
        for (address, size, registered) in self.blocks.iter_mut().filter(|block| *block.2 == 0) {
            if register(driver, address, size) == CUresult::SUCCESS {
                *registered = context;
            }
        }
    }

    /// Writes `data` into registered memory.
    ///
    /// # Errors
    ///
    /// A session error when it is not registered.
    pub(crate) fn push(&self, address: u64, data: &[u8]) -> Result<(), Fault> {
        self.check_registered(address, data.len() as u64)?;
        // SAFETY: the range is inside the mapped arena by the check above; `data` is the frame's own copy, which lies
        // elsewhere. The GPU may read meanwhile: the program's race, as it would be natively.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), pointer(address), data.len()) };
        Ok(())
    }

    /// Whether the range may be read by [`pull`].
    ///
    /// # Errors
    ///
    /// A session error when it is not registered.
    pub(crate) fn check_registered(&self, address: u64, size: u64) -> Result<(), Fault> {
        if self.blocks.covers(address, size) { Ok(()) } else { Err(out_of_range(address, size)) }
    }

    /// A context is gone, and the registrations made in it. Shared blocks wait to be registered again; the contents of
    /// private ones were the worker's alone, so the program sends them anew.
    pub(crate) fn forget_context(&mut self, context: u32) {
        let gone = self.blocks.iter_mut().filter(|block| *block.2 == context);
        let gone: Vec<_> =
            gone.map(|(address, size, registered)| (address, size, std::mem::take(registered))).collect();
        for (address, size, _) in gone {
            self.is_stale = true;
            if !self.is_shared {
                self.blocks.remove(address, size);
            }
        }
    }

    fn check(&self, address: u64, size: u64) -> Result<(), Fault> {
        let Range { start, end } = self.arena.range();
        let whole = size > 0 && address.is_multiple_of(PAGE) && size.is_multiple_of(PAGE);
        let inside = address.checked_add(size).is_some_and(|last| start <= address && last <= end);
        if whole && inside { Ok(()) } else { Err(out_of_range(address, size)) }
    }
}

/// Tells the driver about a block of the arena.
fn register(driver: &Driver, address: u64, size: u64) -> CUresult {
    let flags = host_register_flags::PORTABLE | host_register_flags::DEVICEMAP;
    // SAFETY: the range is mapped as long as the session; the program may write it at any time, which the driver is
    // made for.
    unsafe { driver.cuMemHostRegister_v2(pointer(address).cast(), size as usize, flags) }
}

/// Gives the pages of private memory back; they come again as zeros.
fn clear(address: u64, size: u64) -> Result<(), CUresult> {
    // SAFETY: whole pages inside the mapped arena, which hold no Rust value and are not registered at this moment.
    let cleared = unsafe { madvise(pointer(address).cast(), size as usize, Advice::LinuxDontNeed) };
    cleared.map_err(|_| CUresult::ERROR_OPERATING_SYSTEM)
}

/// Copies `size` bytes of the arena, which [`HostMemory::check_registered`] has passed.
///
/// # Safety
///
/// The range must lie inside the mapped arena.
pub(crate) unsafe fn pull(address: u64, size: usize) -> Vec<u8> {
    let mut data = vec![0; size];
    // SAFETY: readable by the caller's promise; `data` has `size` bytes and lies elsewhere.
    unsafe { std::ptr::copy_nonoverlapping(pointer(address).cast_const(), data.as_mut_ptr(), size) };
    data
}

/// An address of an arena, which was mapped outside of Rust's knowledge.
pub(crate) fn pointer(address: u64) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

fn out_of_range(address: u64, size: u64) -> Fault {
    SessionError::BadRange { what: "pinned memory", address, size }.into()
}

//! Pinned host memory: an arena at the same address on both sides, registered with the driver block by block.
//!
//! On a shared-memory link the arena is the program's own memory; on a stream link it is memory of the worker that
//! the program pushes to and pulls from. Pages outside of the arena are memory that the program registered: the worker
//! makes pages of its own at the same address, if nothing of its own lies there, and they too are pushed and pulled.
//! Either way only whole pages can be named, and only registered blocks are written or read. Sizes and addresses are
//! bytes.

#![expect(unsafe_code, reason = "copies from and to memory that the program and the GPU see")]

use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};

use katydid_arena::{Reservation, ReserveError};
use katydid_cuda_sys::{CUresult, host_register_flags};
use katydid_driver::Driver;
use rustix::fs::fstat;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::chunks::Chunks;
use crate::fault::{Fault, SessionError};
use crate::large_pages;

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
    /// The program has its own view of the same pages, which are this memory's; otherwise they are the worker's alone.
    shared: Option<OwnedFd>,
}

impl HostMemory {
    /// An arena over the whole length of which private memory is mapped, readable and writable.
    pub fn private(arena: Reservation) -> Self {
        Self { arena, blocks: Chunks::default(), is_stale: false, shared: None }
    }

    /// An arena over the whole length of which the program's memory is mapped, readable and writable. That memory never
    /// becomes shorter, but may be shorter than the arena.
    pub fn shared(arena: Reservation, shared: OwnedFd) -> Self {
        Self { shared: Some(shared), ..Self::private(arena) }
    }

    /// Whether the program has the same pages.
    pub(crate) fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    /// The program is there: `shared` is its own memory, which takes the place of what was mapped; without any, the
    /// pages stay the worker's.
    ///
    /// # Errors
    ///
    /// What the system refuses.
    pub(crate) fn join(&mut self, shared: Option<BorrowedFd<'_>>) -> Result<(), ReserveError> {
        if let Some(shared) = shared {
            self.shared = Some(self.arena.join(shared)?);
        }
        Ok(())
    }

    /// Registers a block with the driver, in the current context `context`. Memory that is not shared begins as zeros.
    ///
    /// # Errors
    ///
    /// `CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED`, what the driver says, or a session error for a range that is not
    /// whole pages of the arena.
    pub(crate) fn register(&mut self, driver: &Driver, context: u32, address: u64, size: u64) -> Result<(), Fault> {
        let is_outside = self.check(address, size)? == Lies::Outside;
        if !self.blocks.is_free(address, size) {
            return Err(CUresult::ERROR_HOST_MEMORY_ALREADY_REGISTERED.into());
        }
        if is_outside {
            map(address, size)?;
        } else if self.is_shared() {
            large_pages::gather(address, size);
        } else {
            clear(address, size)?;
        }
        let registered = register(driver, address, size).ok();
        if registered.is_err() && is_outside {
            unmap(address, size);
        }
        registered?;
        self.blocks.insert(address, size, context);
        Ok(())
    }

    /// Whether a registered block starts there.
    pub(crate) fn is_registered(&self, address: u64) -> bool {
        self.blocks.starts_at(address)
    }

    /// Notes a block that is registered when there is a context.
    ///
    /// # Errors
    ///
    /// As [`HostMemory::register`].
    pub(crate) fn adopt(&mut self, address: u64, size: u64) -> Result<(), Fault> {
        self.check(address, size)?;
        if !self.blocks.insert(address, size, 0) {
            return Err(CUresult::ERROR_HOST_MEMORY_ALREADY_REGISTERED.into());
        }
        self.is_stale = true;
        Ok(())
    }

    /// Takes a block out of the books; the caller does the rest.
    ///
    /// # Errors
    ///
    /// `CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED` when it is no registered block.
    pub(crate) fn unregister(&mut self, address: u64, size: u64) -> Result<Leaving, Fault> {
        match self.blocks.remove(address, size).as_deref() {
            Some([(_, _, context)]) => {
                Ok(Leaving { address, size, is_known: *context != 0, is_outside: !self.is_inside(address) })
            }
            _ => Err(CUresult::ERROR_HOST_MEMORY_NOT_REGISTERED.into()),
        }
    }

    /// Whether a block's contents are the worker's own, so that nobody else keeps them.
    pub fn is_private(&self, address: u64) -> bool {
        !self.is_shared() || !self.is_inside(address)
    }

    fn is_inside(&self, address: u64) -> bool {
        self.arena.range().contains(&address)
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

    /// Whether all of the range is registered.
    pub(crate) fn holds(&self, address: u64, size: u64) -> bool {
        self.blocks.covers(address, size)
    }

    /// A context is gone, and the registrations made in it. Shared blocks wait to be registered again; the contents of
    /// private ones were the worker's alone, so the program sends them anew.
    pub(crate) fn forget_context(&mut self, context: u32) {
        let gone = self.blocks.iter_mut().filter(|block| *block.2 == context);
        let gone: Vec<_> =
            gone.map(|(address, size, registered)| (address, size, std::mem::take(registered))).collect();
        for (address, size, _) in gone {
            self.is_stale = true;
            if self.is_private(address) {
                self.blocks.remove(address, size);
            }
            if !self.is_inside(address) {
                unmap(address, size);
            }
        }
    }

    /// Registered blocks: address and size.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = (u64, u64)> {
        self.blocks.iter().map(|(address, size, _)| (address, size))
    }

    /// Bytes of the arena that have memory behind them.
    fn length(&self) -> u64 {
        let Some(shared) = &self.shared else { return u64::MAX };
        fstat(shared).map_or(0, |stat| stat.st_size.cast_unsigned())
    }

    fn check(&self, address: u64, size: u64) -> Result<Lies, Fault> {
        let Range { start, end } = self.arena.range();
        let whole = size > 0 && address.is_multiple_of(PAGE) && size.is_multiple_of(PAGE);
        match address.checked_add(size).filter(|_| whole) {
            // What lies beyond the program's memory would be no error but a signal.
            Some(last) if start <= address && last <= end && last - start <= self.length() => Ok(Lies::Inside),
            Some(last) if (last <= start || end <= address) && size <= end - start => Ok(Lies::Outside),
            _ => Err(out_of_range(address, size)),
        }
    }
}

/// Where pages lie.
#[derive(Debug, PartialEq, Eq)]
enum Lies {
    /// In the arena.
    Inside,
    /// Where the program has memory of its own.
    Outside,
}

/// A block that has left the books.
#[derive(Debug)]
pub(crate) struct Leaving {
    address: u64,
    size: u64,
    /// The driver knows it.
    is_known: bool,
    is_outside: bool,
}

impl Leaving {
    /// Ends the registration, which waits until the GPU has done with the block.
    pub(crate) fn end(&self, driver: &Driver) -> CUresult {
        // SAFETY: the block was registered at this address, and has left the books.
        let unregister = || unsafe { driver.cuMemHostUnregister(pointer(self.address).cast()) };
        let status = if self.is_known { unregister() } else { CUresult::SUCCESS };
        if self.is_outside && status == CUresult::SUCCESS {
            unmap(self.address, self.size);
        }
        status
    }
}

/// Makes pages at exactly these addresses.
///
/// # Errors
///
/// `CUDA_ERROR_NOT_SUPPORTED` when the worker has memory of its own there: nothing of it is ever replaced.
fn map(address: u64, size: u64) -> Result<(), CUresult> {
    let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE | MapFlags::NORESERVE;
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a mapping that replaces none is nobody's memory before.
    let mapped = unsafe { mmap_anonymous(pointer(address).cast(), size as usize, access, flags) };
    match mapped {
        Ok(start) if start.addr() as u64 == address => Ok(()),
        // A kernel that does not know the flag takes the address for advice.
        Ok(start) => {
            // SAFETY: made just now, and given to nobody.
            let _ = unsafe { munmap(start, size as usize) };
            Err(CUresult::ERROR_NOT_SUPPORTED)
        }
        Err(Errno::NOMEM) => Err(CUresult::ERROR_OUT_OF_MEMORY),
        Err(_) => Err(CUresult::ERROR_NOT_SUPPORTED),
    }
}

/// Takes pages away that [`map`] made. Pages that stay cost memory until the session ends, and nothing else.
fn unmap(address: u64, size: u64) {
    // SAFETY: a block that `map` made and that has left the books; the driver does not know it any more.
    let _ = unsafe { munmap(pointer(address).cast(), size as usize) };
}

/// Tells the driver about a block of the arena.
fn register(driver: &Driver, address: u64, size: u64) -> CUresult {
    let flags = host_register_flags::PORTABLE | host_register_flags::DEVICEMAP;
    // SAFETY: the range is mapped as long as it is registered; the program may write it at any time, which the driver is
    // made for.
    unsafe { driver.cuMemHostRegister_v2(pointer(address).cast(), size as usize, flags) }
}

/// Gives the pages of private memory back; they come again as zeros.
fn clear(address: u64, size: u64) -> Result<(), CUresult> {
    // SAFETY: whole pages inside the mapped arena, which hold no Rust value and are not registered at this moment.
    let cleared = unsafe { madvise(pointer(address).cast(), size as usize, Advice::LinuxDontNeed) };
    cleared.map_err(|_| CUresult::ERROR_OPERATING_SYSTEM)
}

/// Writes `data`. The GPU may read meanwhile: the program's race, as it would be natively.
///
/// # Safety
///
/// The range must be registered, or managed memory of a module that is loaded.
pub(crate) unsafe fn push(address: u64, data: &[u8]) {
    // SAFETY: writable by the caller's promise; `data` is the frame's own copy, which lies elsewhere.
    unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), pointer(address), data.len()) };
}

/// Copies `size` bytes.
///
/// # Safety
///
/// As [`push`].
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

pub(crate) fn out_of_range(address: u64, size: u64) -> Fault {
    SessionError::BadRange { what: "pinned memory", address, size }.into()
}

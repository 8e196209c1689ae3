//! Pinned host memory: an arena at the same address on both sides, registered with the driver block by block.
//!
//! On a shared-memory link the arena is the program's own memory. On a stream link it is memory of the worker, to which the
//! program pushes and from which it pulls. Pages outside of the arena are memory that the program registered: the worker
//! makes its own pages at the same address, unless it has other memory there, and they are pushed and pulled too. Either way
//! only whole pages can be named, and only registered blocks are written or read. Sizes and addresses are in bytes.

#![expect(unsafe_code, reason = "copies from and to memory that the program and the GPU see")]

use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use katydid_arena::{Reservation, ReserveError};
use katydid_cuda_sys::{CUresult, host_register_flags};
use katydid_driver::Driver;
use rustix::fs::{MemfdFlags, fstat, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use crate::calls::fault::{Fault, SessionError};
use crate::memory::address::pointer;
use crate::memory::chunks::Chunks;
use crate::memory::large_pages;

/// Registered blocks are whole pages.
pub(crate) const PAGE_BYTES: u64 = katydid_wire::PAGE_BYTES as u64;
/// Bytes of a word in a partial push of a page.
const PAGE_WORD_BYTES: usize = 4;
/// Bytes of the bit mask in front of such words: a bit for each word of the page.
const PAGE_MASK_BYTES: usize = PAGE_BYTES as usize / PAGE_WORD_BYTES / 8;
/// Bytes of the stand-in for host memory in a rehearsal: large, since a process may have a limited number of mappings.
const STAND_IN_SIZE: u64 = 64 << 20;

/// Memory of the worker that can be pushed and pulled: the program has its own pages of it, or the same ones.
///
/// Only the main loop changes the tables. Any other thread locks them while it reads or writes a block's memory, which stays
/// until then. A program pushes and pulls no variable that it is unloading, and no mapping that it is removing.
#[derive(Debug, Default)]
pub(crate) struct Blocks(Mutex<Chunks<BlockUse>>);

/// The reason for a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BlockUse {
    /// The program registered it, in the context of this wire id; 0 once that is gone.
    Registered(u32),
    /// It is a variable that the driver placed in managed memory.
    Variable(VariableOwner),
    /// It is host memory that the program has mapped and opened for itself.
    Mapped,
}

/// The owner of a variable, by wire ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum VariableOwner {
    /// Ends with the module or its context.
    Module {
        module: u32,
        context: u32,
    },
    Library {
        library: u32,
        context: u32,
    },
}

impl VariableOwner {
    pub(crate) fn context(self) -> u32 {
        match self {
            Self::Module { context, .. } | Self::Library { context, .. } => context,
        }
    }
}

impl Blocks {
    fn lock(&self) -> MutexGuard<'_, Chunks<BlockUse>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a managed variable. Overlapping ones in the tables are gone, or are the same one.
    pub(crate) fn add_variable(&self, address: u64, size: u64, owner: VariableOwner) {
        let mut blocks = self.lock();
        let end = address.saturating_add(size);
        forget(&mut blocks, |start, length, held| {
            matches!(held, BlockUse::Variable(_)) && start < end && address < start.saturating_add(length)
        });
        blocks.insert(address, size, BlockUse::Variable(owner));
    }

    /// Removes variables whose owners are gone.
    pub(crate) fn forget_variables(&self, is_gone: impl Fn(VariableOwner) -> bool) {
        forget(&mut self.lock(), |_, _, held| matches!(held, BlockUse::Variable(owner) if is_gone(owner)));
    }

    /// Notes whether the program may use a mapping of host memory.
    pub(crate) fn open(&self, address: u64, size: u64, is_open: bool) {
        let mut blocks = self.lock();
        if is_open {
            // An open mapping stays open.
            blocks.insert(address, size, BlockUse::Mapped);
        } else {
            forget(&mut blocks, |start, _, held| start == address && held == BlockUse::Mapped);
        }
    }

    /// Returns whether all of the range is in the tables.
    pub(crate) fn holds(&self, address: u64, size: u64) -> bool {
        self.lock().covers(address, size)
    }

    /// Writes `data`, if its whole range is in the tables. The GPU may read meanwhile: that race is the program's, as
    /// natively.
    pub(crate) fn push(&self, address: u64, data: &[u8]) -> bool {
        let blocks = self.lock();
        let holds = blocks.covers(address, data.len() as u64);
        if holds {
            // SAFETY: the memory is there, and stays so while the tables are locked.
            unsafe { push(address, data) };
        }
        holds
    }

    /// Writes words of a page, if all of it is in the tables.
    pub(crate) fn patch(&self, address: u64, words: PageWords<'_>) -> bool {
        let blocks = self.lock();
        let holds = blocks.covers(address, PAGE_BYTES);
        if holds {
            // SAFETY: as above.
            unsafe { patch(address, words) };
        }
        holds
    }

    /// Copies these ranges, addresses and sizes, one after the other, if all of them are in the tables.
    pub(crate) fn pull(&self, ranges: &[(u64, u32)]) -> Option<Vec<u8>> {
        let blocks = self.lock();
        let mut data = Vec::with_capacity(ranges.iter().map(|(_, size)| *size as usize).sum());
        for &(address, size) in ranges {
            // SAFETY: as above.
            blocks.covers(address, u64::from(size)).then(|| unsafe { pull(&mut data, address, size as usize) })?;
        }
        Some(data)
    }
}

/// Removes blocks from the tables.
fn forget(blocks: &mut Chunks<BlockUse>, is_gone: impl Fn(u64, u64, BlockUse) -> bool) {
    let gone: Vec<_> =
        blocks.iter().filter(|(at, size, held)| is_gone(*at, *size, **held)).map(|(at, size, _)| (at, size)).collect();
    for (address, size) in gone {
        blocks.remove(address, size);
    }
}

/// Pinned host memory: an arena at the same addresses in the program and the worker.
#[derive(Debug)]
pub struct HostMemory {
    /// Keeps the mapping alive.
    arena: Reservation,
    blocks: Arc<Blocks>,
    /// Whether a context has gone and taken registrations with it.
    is_stale: bool,
    /// The program's memory if both sides map the same pages; otherwise the pages are the worker's alone.
    shared: Option<OwnedFd>,
    /// In a rehearsal: the stand-in for all host memory.
    stand_in: Option<OwnedFd>,
    /// Whether the program has a copy of the shared pages, and will bring it.
    awaits_program: bool,
}

impl HostMemory {
    /// Makes an arena whose whole length is private memory, readable and writable.
    pub fn private(arena: Reservation) -> Self {
        Self { arena, blocks: Arc::default(), is_stale: false, shared: None, stand_in: None, awaits_program: false }
    }

    /// Makes an arena whose whole length is mapped to the program's memory, readable and writable. That memory never
    /// shrinks, but may be shorter than the arena.
    pub fn shared(arena: Reservation, shared: OwnedFd) -> Self {
        Self { shared: Some(shared), ..Self::private(arena) }
    }

    /// Returns the table of blocks, for the relay while the main loop is blocked.
    pub(crate) fn shared_blocks(&self) -> Arc<Blocks> {
        Arc::clone(&self.blocks)
    }

    /// Returns whether the program has the same pages.
    pub(crate) fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    /// Joins the program's memory: `shared` replaces the mapped memory. Without it, the pages stay the worker's.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub(crate) fn join(&mut self, shared: Option<BorrowedFd<'_>>) -> Result<(), ReserveError> {
        if let Some(shared) = shared {
            self.shared = Some(self.arena.join(shared)?);
        }
        self.awaits_program = false;
        Ok(())
    }

    /// Ends the registrations and keeps the tables. Gives up shared memory, which the program will bring again. Contents of
    /// pages that are only the worker's stay.
    ///
    /// # Errors
    ///
    /// The driver's code.
    pub(crate) fn suspend(&mut self, driver: &Driver) -> Result<(), CUresult> {
        for (address, _) in self.known_blocks() {
            // SAFETY: a registered block, which nothing uses.
            match unsafe { driver.cuMemHostUnregister(pointer(address).cast()) } {
                // An earlier attempt has done that.
                CUresult::SUCCESS | CUresult::ERROR_HOST_MEMORY_NOT_REGISTERED => {}
                code => return Err(code),
            }
        }
        if self.shared.take().is_some() {
            let Range { start, end } = self.arena.range();
            self.awaits_program = true;
            self.arena.unmap(0, end - start).map_err(|_| CUresult::ERROR_OPERATING_SYSTEM)?;
        }
        Ok(())
    }

    /// Returns whether [`HostMemory::join`] is still to come after [`HostMemory::suspend`].
    pub(crate) fn awaits_program(&self) -> bool {
        self.awaits_program
    }

    /// Repeats the registrations that [`HostMemory::suspend`] has ended. A context is current.
    ///
    /// # Errors
    ///
    /// The driver's code.
    pub(crate) fn register_again(&self, driver: &Driver) -> Result<(), CUresult> {
        for (address, size) in self.known_blocks() {
            if self.is_shared() && self.is_inside(address) {
                large_pages::gather(address, size);
            }
            match register(driver, address, size) {
                CUresult::SUCCESS | CUresult::ERROR_HOST_MEMORY_ALREADY_REGISTERED => {}
                code => return Err(code),
            }
        }
        Ok(())
    }

    /// Returns blocks that the driver knows, or knew before [`HostMemory::suspend`]: address and size.
    fn known_blocks(&self) -> Vec<(u64, u64)> {
        let blocks = self.blocks.lock();
        let known = blocks.iter().filter(|block| matches!(block.2, BlockUse::Registered(context) if *context != 0));
        known.map(|(address, size, _)| (address, size)).collect()
    }

    /// Begins a rehearsal: registered memory has no contents from here on, and little memory stands in for all of it.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub(crate) fn begin_rehearsal(&mut self) -> Result<(), Errno> {
        let memory = memfd_create("katydid-rehearsal", MemfdFlags::CLOEXEC)?;
        ftruncate(&memory, STAND_IN_SIZE)?;
        self.stand_in = Some(memory);
        Ok(())
    }

    /// Registers a block with the driver, in the current context `context`. Memory that is not shared begins as zeros.
    ///
    /// # Errors
    ///
    /// `CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED`, the driver's code, or a session error for a range that is not whole
    /// pages of the arena.
    pub(crate) fn register(&mut self, driver: &Driver, context: u32, address: u64, size: u64) -> Result<(), Fault> {
        let is_outside = self.check(address, size)? == PageLocation::Outside;
        if !self.blocks.lock().is_free(address, size) {
            return Err(CUresult::ERROR_HOST_MEMORY_ALREADY_REGISTERED.into());
        }
        if is_outside {
            map(address, size)?;
        }
        if let Some(memory) = &self.stand_in {
            map_over(memory, address, size)?;
        } else if is_outside {
            // New pages are zeros.
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
        self.blocks.lock().insert(address, size, BlockUse::Registered(context));
        Ok(())
    }

    /// Returns whether a registered block starts at the address.
    pub(crate) fn is_registered(&self, address: u64) -> bool {
        matches!(self.blocks.lock().at(address), Some(BlockUse::Registered(_)))
    }

    /// Adds a block that is registered when there is a context.
    ///
    /// # Errors
    ///
    /// As [`HostMemory::register`].
    pub(crate) fn adopt(&mut self, address: u64, size: u64) -> Result<(), Fault> {
        self.check(address, size)?;
        if !self.blocks.lock().insert(address, size, BlockUse::Registered(0)) {
            return Err(CUresult::ERROR_HOST_MEMORY_ALREADY_REGISTERED.into());
        }
        self.is_stale = true;
        Ok(())
    }

    /// Removes a block from the tables; the caller ends its registration.
    ///
    /// # Errors
    ///
    /// `CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED` if it is no registered block.
    pub(crate) fn unregister(&mut self, address: u64, size: u64) -> Result<DetachedBlock, Fault> {
        let mut blocks = self.blocks.lock();
        let context = match blocks.at(address) {
            Some(BlockUse::Registered(context)) if blocks.is_whole_allocation(address, size) => *context,
            _ => return Err(CUresult::ERROR_HOST_MEMORY_NOT_REGISTERED.into()),
        };
        blocks.remove(address, size);
        Ok(DetachedBlock { address, size, is_known: context != 0, is_outside: !self.is_inside(address) })
    }

    /// Returns whether only the worker has a block's contents, so that the program cannot bring them.
    pub fn is_private(&self, address: u64) -> bool {
        !self.is_shared() || !self.is_inside(address)
    }

    fn is_inside(&self, address: u64) -> bool {
        self.arena.range().contains(&address)
    }

    /// Registers, in the current context `context`, blocks whose registrations ended with another context: the program uses
    /// the memory again. If the driver refuses a block, the next such end tries again.
    pub(crate) fn restore(&mut self, driver: &Driver, context: u32) {
        if !std::mem::take(&mut self.is_stale) {
            return;
        }
        // The driver may wait for the GPU: no lock is held meanwhile.
        let is_gone = |held: &BlockUse| *held == BlockUse::Registered(0);
        let gone: Vec<_> =
            self.blocks.lock().iter().filter(|block| is_gone(block.2)).map(|(at, size, _)| (at, size)).collect();
        for (address, size) in gone {
            if register(driver, address, size) == CUresult::SUCCESS {
                let mut blocks = self.blocks.lock();
                let held = blocks.iter_mut().find(|block| block.0 == address).map(|block| block.2);
                held.into_iter().for_each(|held| *held = BlockUse::Registered(context));
            }
        }
    }

    /// Ends the registrations of a context that is gone. Shared blocks wait to be registered again. The contents of private
    /// ones were only the worker's, so the program sends them again.
    pub(crate) fn forget_context(&mut self, context: u32) {
        let mut blocks = self.blocks.lock();
        let gone = blocks.iter_mut().filter(|block| *block.2 == BlockUse::Registered(context));
        let gone: Vec<_> = gone
            .map(|(address, size, held)| {
                *held = BlockUse::Registered(0);
                (address, size)
            })
            .collect();
        for (address, size) in gone {
            self.is_stale = true;
            if self.is_private(address) {
                blocks.remove(address, size);
            }
            if !self.is_inside(address) {
                unmap(address, size);
            }
        }
    }

    /// Returns registered blocks: address and size.
    pub(crate) fn blocks(&self) -> Vec<(u64, u64)> {
        let blocks = self.blocks.lock();
        let registered = blocks.iter().filter(|block| matches!(block.2, BlockUse::Registered(_)));
        registered.map(|(address, size, _)| (address, size)).collect()
    }

    /// Returns the bytes of the arena that have memory behind them.
    fn length(&self) -> u64 {
        let Some(shared) = &self.shared else { return u64::MAX };
        fstat(shared).map_or(0, |stat| stat.st_size.cast_unsigned())
    }

    fn check(&self, address: u64, size: u64) -> Result<PageLocation, Fault> {
        let Range { start, end } = self.arena.range();
        let whole = size > 0 && address.is_multiple_of(PAGE_BYTES) && size.is_multiple_of(PAGE_BYTES);
        match address.checked_add(size).filter(|_| whole) {
            // An access beyond the program's memory would be a signal, not an error.
            Some(last) if start <= address && last <= end && last - start <= self.length() => Ok(PageLocation::Inside),
            Some(last) if (last <= start || end <= address) && size <= end - start => Ok(PageLocation::Outside),
            _ => Err(out_of_range(address, size)),
        }
    }
}

/// The location of pages.
#[derive(Debug, PartialEq, Eq)]
enum PageLocation {
    /// In the pinned arena.
    Inside,
    /// Where the program has its own memory.
    Outside,
}

/// A block that was removed from the tables.
#[derive(Debug)]
pub(crate) struct DetachedBlock {
    address: u64,
    size: u64,
    /// Whether the driver knows it.
    is_known: bool,
    is_outside: bool,
}

impl DetachedBlock {
    /// Ends the registration, after the GPU is done with the block.
    pub(crate) fn end(&self, driver: &Driver) -> CUresult {
        // SAFETY: the block was registered at this address, and has left the tables.
        let unregister = || unsafe { driver.cuMemHostUnregister(pointer(self.address).cast()) };
        let status = if self.is_known { unregister() } else { CUresult::SUCCESS };
        if self.is_outside && status == CUresult::SUCCESS {
            unmap(self.address, self.size);
        }
        status
    }
}

/// Maps pages at exactly these addresses.
///
/// # Errors
///
/// `CUDA_ERROR_NOT_SUPPORTED` if the worker has other memory there, which is never replaced.
fn map(address: u64, size: u64) -> Result<(), CUresult> {
    let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE | MapFlags::NORESERVE;
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a mapping that replaces none takes memory from no code.
    let mapped = unsafe { mmap_anonymous(pointer(address).cast(), size as usize, access, flags) };
    match mapped {
        Ok(start) if start.addr() as u64 == address => Ok(()),
        // A kernel without the flag takes the address for a hint.
        Ok(start) => {
            // SAFETY: made just now, and given to no code.
            let _ = unsafe { munmap(start, size as usize) };
            Err(CUresult::ERROR_NOT_SUPPORTED)
        }
        Err(Errno::NOMEM) => Err(CUresult::ERROR_OUT_OF_MEMORY),
        Err(_) => Err(CUresult::ERROR_NOT_SUPPORTED),
    }
}

/// Maps memory over a range of whole pages that the worker mapped before, as often as it takes.
fn map_over(memory: &OwnedFd, address: u64, size: u64) -> Result<(), CUresult> {
    let (flags, access) = (MapFlags::SHARED | MapFlags::FIXED, ProtFlags::READ | ProtFlags::WRITE);
    let mut done = 0;
    while done < size {
        let part = (size - done).min(STAND_IN_SIZE);
        // SAFETY: pages of the arena, or such as `map` has made, which hold no Rust value and are not registered.
        let mapped = unsafe { mmap(pointer(address + done).cast(), part as usize, access, flags, memory, 0) };
        mapped.map_err(|_| CUresult::ERROR_OUT_OF_MEMORY)?;
        done += part;
    }
    Ok(())
}

/// Unmaps pages that [`map`] made. On failure they cost memory until the session ends, and nothing else.
fn unmap(address: u64, size: u64) {
    // SAFETY: a block that `map` made and that has left the tables; the driver does not know it any more.
    let _ = unsafe { munmap(pointer(address).cast(), size as usize) };
}

/// Registers a block of the arena with the driver.
fn register(driver: &Driver, address: u64, size: u64) -> CUresult {
    let flags = host_register_flags::PORTABLE | host_register_flags::DEVICEMAP;
    // SAFETY: the range is mapped as long as it is registered; the program may write it at any time, which the driver
    // allows.
    unsafe { driver.cuMemHostRegister_v2(pointer(address).cast(), size as usize, flags) }
}

/// Frees the pages of private memory; they come back as zeros.
fn clear(address: u64, size: u64) -> Result<(), CUresult> {
    // SAFETY: whole pages inside the mapped arena, which hold no Rust value and are not registered at this moment.
    let cleared = unsafe { madvise(pointer(address).cast(), size as usize, Advice::LinuxDontNeed) };
    cleared.map_err(|_| CUresult::ERROR_OPERATING_SYSTEM)
}

/// Writes `data`. The GPU may read meanwhile: it sees words of up to 8 bytes whole or not at all, as natively.
///
/// # Safety
///
/// The range must be in the tables of [`Blocks`].
unsafe fn push(address: u64, data: &[u8]) {
    let head = (address.wrapping_neg() % 8).min(data.len() as u64) as usize;
    let (head, words) = data.split_at(head);
    let (words, tail) = words.as_chunks::<8>();
    let first = pointer(address + head.len() as u64);
    // SAFETY: writable by the caller's promise; `data` is the frame's own copy, which lies elsewhere. The bytes after the
    // head are aligned to words, each of which is stored at once.
    unsafe {
        std::ptr::copy_nonoverlapping(head.as_ptr(), pointer(address), head.len());
        for (at, word) in words.iter().enumerate() {
            first.cast::<u64>().add(at).write_volatile(u64::from_le_bytes(*word));
        }
        std::ptr::copy_nonoverlapping(tail.as_ptr(), first.add(words.len() * 8), tail.len());
    }
}

/// Some words of a page, as in the message: a bit for each word of the page, then the words whose bit is set.
#[derive(Clone, Copy)]
pub(crate) struct PageWords<'a> {
    mask: &'a [u8; PAGE_MASK_BYTES],
    data: &'a [[u8; PAGE_WORD_BYTES]],
}

impl<'a> PageWords<'a> {
    /// Decodes words; none if their number does not match the bits.
    pub(crate) fn of(bytes: &'a [u8]) -> Option<Self> {
        let (mask, data) = bytes.split_first_chunk::<PAGE_MASK_BYTES>()?;
        let (data, rest) = data.as_chunks::<PAGE_WORD_BYTES>();
        let count: u32 = mask.iter().map(|bits| bits.count_ones()).sum();
        (rest.is_empty() && data.len() == count as usize).then_some(Self { mask, data })
    }

    /// Returns offset and bytes of each run of words without a gap.
    fn runs(self) -> impl Iterator<Item = (usize, &'a [u8])> {
        let is_set = move |word: usize| self.mask[word / 8] >> (word % 8) & 1 != 0;
        let (mut word, mut data) = (0, self.data);
        std::iter::from_fn(move || {
            let first = (word..PAGE_MASK_BYTES * 8).find(|word| is_set(*word))?;
            word = (first..PAGE_MASK_BYTES * 8).find(|word| !is_set(*word)).unwrap_or(PAGE_MASK_BYTES * 8);
            let (run, rest) = data.split_at_checked(word - first)?;
            data = rest;
            Some((first * PAGE_WORD_BYTES, run.as_flattened()))
        })
    }
}

/// Writes some words of the page that begins at `address`.
///
/// # Safety
///
/// As [`push`], of the whole page.
unsafe fn patch(address: u64, words: PageWords<'_>) {
    for (at, run) in words.runs() {
        // SAFETY: inside the page.
        unsafe { push(address + at as u64, run) };
    }
}

/// Appends `size` bytes at `address` to `data`.
///
/// # Safety
///
/// As [`push`].
unsafe fn pull(data: &mut Vec<u8>, address: u64, size: usize) {
    let before = data.len();
    data.resize(before + size, 0);
    // SAFETY: readable by the caller's promise; `data` has `size` bytes after the old ones, which lie elsewhere.
    unsafe { std::ptr::copy_nonoverlapping(pointer(address).cast_const(), data[before..].as_mut_ptr(), size) };
}

pub(crate) fn out_of_range(address: u64, size: u64) -> Fault {
    SessionError::BadRange { what: "pinned memory", address, size }.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODULE: VariableOwner = VariableOwner::Module { module: 3, context: 1 };
    const LIBRARY: VariableOwner = VariableOwner::Library { library: 3, context: 2 };

    #[test]
    fn variables_go_with_their_owners_and_make_way_for_others() {
        let blocks = Blocks::default();
        blocks.add_variable(0x1000, 64, MODULE);
        blocks.add_variable(0x2000, 64, LIBRARY);
        assert!(blocks.holds(0x1010, 48) && blocks.holds(0x2000, 64) && !blocks.holds(0x1000, 65));
        // A variable of a module that was loaded in the place of others.
        blocks.add_variable(0xff0, 0x1020, MODULE);
        assert!(blocks.holds(0xff0, 0x1020) && !blocks.holds(0x2010, 48));
        blocks.add_variable(0x3000, 8, LIBRARY);
        blocks.forget_variables(|owner| matches!(owner, VariableOwner::Module { module: 3, .. }));
        assert!(!blocks.holds(0x1000, 64) && blocks.holds(0x3000, 8));
        blocks.forget_variables(|owner| owner.context() == 2);
        assert!(!blocks.holds(0x3000, 8));
    }

    #[test]
    fn mappings_are_there_while_they_are_open() {
        let blocks = Blocks::default();
        blocks.open(0x20_0000, 0x20_0000, true);
        blocks.open(0x20_0000, 0x20_0000, true);
        blocks.open(0x40_0000, 0x20_0000, true);
        assert!(blocks.holds(0x3f_fff8, 16));
        blocks.open(0x40_0000, 0x20_0000, false);
        assert!(!blocks.holds(0x3f_fff8, 16) && blocks.holds(0x20_0000, 0x20_0000));
        assert!(blocks.pull(&[(0x40_0000, 8)]).is_none() && !blocks.push(0x40_0000, &[0; 8]));
    }
}

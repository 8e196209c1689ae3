//! Memory shared with the program, at the same addresses. Its `CL_MEM_ALLOC_HOST_PTR` buffers are mapped there.
//!
//! On processors a buffer lies there, and its contents belong to the program, not to the session. On other devices the buffer is
//! also made over this memory, and the driver maps it there; its contents are the device's. Data of commands lies there too, in
//! blocks that the program allocates. A session that is rebuilt has its own pages there until its program connects, whose memory
//! then replaces them.
//!
//! Fine-grained shared virtual memory is part of it too: on both sides, it also lies at the address that the driver gave.

#![expect(unsafe_code, reason = "maps the program's memory where a driver's was")]

use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use katydid_arena::{Reservation, ReserveError};
use katydid_opencl_sys::{Code, void};
use katydid_wire::handshake::{ArenaKind, ArenaRange};
use rustix::fs::fstat;
use rustix::mm::{MapFlags, mmap, mmap_anonymous};

use crate::memory::address::pointer;
use crate::memory::staged::StagedRead;
use crate::memory::unshared_pages::{PAGE_ACCESS, UnsharedPages};

/// The layout of a context's images in memory: the context, the kind, the channel order, the bytes of an element, and the kernel
/// accesses. The channel type says what the bytes mean, not where they lie.
pub(crate) type ImageLayout = (u32, u32, u32, usize, u64);

/// The flags of kernel accesses to a memory object: `CL_MEM_READ_WRITE` and the like. Some formats support only some of them.
pub(crate) const KERNEL_ACCESSES: u64 = 0b111;

/// Environment variable to compare the ways of mapping. `driver` maps buffers of processors like those of other devices; `copy`
/// copies all buffers by commands, as after a restore.
const MAPS_VARIABLE: &str = "KATYDID_OPENCL_MAPS";

/// How buffers use this memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MapMode {
    /// Buffers of processors lie there; drivers of other devices map theirs there.
    InPlace,
    /// Drivers map all buffers.
    Driver,
    /// No driver maps buffers: commands copy.
    Copy,
}

/// Returns the mode that [`MAPS_VARIABLE`] requests.
pub(crate) fn map_mode() -> MapMode {
    match std::env::var(MAPS_VARIABLE).as_deref() {
        Ok("driver") => MapMode::Driver,
        Ok("copy") => MapMode::Copy,
        _ => MapMode::InPlace,
    }
}

/// The shared memory; a stream has none.
#[derive(Debug)]
pub struct HostMemory {
    arena: Reservation,
    /// The program's memory, once the program is connected. It never becomes shorter.
    shared: Option<OwnedFd>,
    /// Number of parts that commands read.
    held_bytes: Arc<AtomicUsize>,
    /// The blocks that the worker has unshared, if there were any.
    unshared: Option<Arc<UnsharedPages>>,
}

impl HostMemory {
    /// Reserves an offered range for the program's memory, which may come later.
    ///
    /// # Errors
    ///
    /// Something else lies there, or the system refuses.
    pub fn new(offer: &ArenaRange, shared: Option<BorrowedFd<'_>>) -> Result<Self, ReserveError> {
        let arena = Reservation::at(offer.base, offer.length)?;
        let mut memory = Self { arena, shared: None, held_bytes: Arc::default(), unshared: None };
        match shared {
            Some(shared) => memory.join(shared)?,
            None => memory.arena.map_private(0, offer.length)?,
        }
        Ok(memory)
    }

    /// Maps the program's memory in place of what was mapped, once the program is connected.
    pub(crate) fn join(&mut self, shared: BorrowedFd<'_>) -> Result<(), ReserveError> {
        self.shared = Some(self.arena.join(shared)?);
        self.unshared = None;
        Ok(())
    }

    /// Returns the range of the memory, in the handshake's form.
    #[must_use]
    pub fn range(&self) -> ArenaRange {
        let Range { start, end } = self.arena.range();
        ArenaRange { kind: ArenaKind::PINNED, base: start, length: end - start }
    }

    /// Returns whether an address lies in the range, whatever is there.
    pub(crate) fn has(&self, address: u64) -> bool {
        self.arena.range().contains(&address)
    }

    /// Holds the bytes that a command reads, until the result is dropped. The program identifies them by a word at this address.
    /// Returns `None` if no word can be there.
    pub(crate) fn hold(&self, word: u64) -> Option<StagedRead> {
        let pointer = self.pointer_to(word, 4).ok().filter(|_| word.is_multiple_of(4))?;
        Some(StagedRead::new(pointer.expose_provenance(), &self.held_bytes))
    }

    /// Returns how many parts commands still read.
    pub(crate) fn parts_in_use(&self) -> usize {
        self.held_bytes.load(Ordering::Acquire)
    }

    /// Returns the unshared blocks. With `is_wanted`, makes the table if needed. Returns `None` where blocks cannot be unshared.
    pub(crate) fn unshared(&mut self, is_wanted: bool) -> Option<Arc<UnsharedPages>> {
        if self.unshared.is_none() && is_wanted {
            let file = self.shared.as_ref()?.try_clone().ok()?;
            self.unshared = UnsharedPages::new(file, self.arena.range()).ok();
        }
        self.unshared.clone()
    }

    /// Counts a map or unmap by the program of a region that begins at an address.
    pub(crate) fn count_map(&self, address: u64, is_mapped: bool) {
        if let Some(unshared) = &self.unshared {
            unshared.count_map(address, is_mapped);
        }
    }

    /// Returns whether the memory at an address differs from the program's.
    pub(crate) fn is_unshared(&self, address: u64) -> bool {
        self.unshared.as_ref().is_some_and(|unshared| unshared.view(address).is_some())
    }

    /// Maps whole pages of the program, at `arena_address`, at another address too, in place of what lies there. Does nothing
    /// before the program is connected.
    ///
    /// # Errors
    ///
    /// `CL_INVALID_VALUE` if part of it is not the program's memory, `CL_OUT_OF_RESOURCES` if the system refuses.
    ///
    /// # Safety
    ///
    /// The caller owns the pages at the address, and no thread refers to them.
    pub(crate) unsafe fn share_program_pages(&self, arena_address: u64, address: u64, bytes: u64) -> Result<(), Code> {
        self.pointer_to(arena_address, bytes)?;
        let Some(file) = &self.shared else { return Ok(()) };
        let (start, flags) = (pointer(address), MapFlags::SHARED | MapFlags::FIXED);
        // SAFETY: the caller guarantees it.
        let mapped =
            unsafe { mmap(start, bytes as usize, PAGE_ACCESS, flags, file, arena_address - self.arena.range().start) };
        mapped.map(drop).map_err(|_| Code::OUT_OF_RESOURCES)
    }

    /// Returns where the program's bytes at an address are in this process.
    ///
    /// # Errors
    ///
    /// `CL_INVALID_VALUE` if part of them is not the program's memory.
    pub(crate) fn pointer_to(&self, address: u64, size: u64) -> Result<*mut void, Code> {
        let Range { start, end } = self.arena.range();
        // An access beyond the file's end would raise a signal.
        let length =
            self.shared.as_ref().map_or(u64::MAX, |file| fstat(file).map_or(0, |stat| stat.st_size.cast_unsigned()));
        let end = end.min(start.saturating_add(length));
        let fits = start <= address && address.checked_add(size).is_some_and(|last| last <= end);
        if !fits {
            return Err(Code::INVALID_VALUE);
        }
        let view = self.unshared.as_ref().and_then(|unshared| unshared.view(address));
        Ok(view.unwrap_or_else(|| pointer(address)))
    }
}

/// Maps zero pages where [`HostMemory::share_program_pages`] has mapped the program's.
///
/// # Errors
///
/// `CL_OUT_OF_RESOURCES`: the program's pages are still there.
///
/// # Safety
///
/// That function mapped the pages, and no thread refers to them.
pub(crate) unsafe fn replace_by_private_pages(address: u64, bytes: u64) -> Result<(), Code> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
    // SAFETY: the caller guarantees it.
    let mapped = unsafe { mmap_anonymous(pointer(address), bytes as usize, PAGE_ACCESS, flags) };
    mapped.map(drop).map_err(|_| Code::OUT_OF_RESOURCES)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;

    #[test]
    fn lent_pages_are_the_programs_until_taken_back() {
        let offer = ArenaRange { kind: ArenaKind::PINNED, base: 0x3f10_0000_0000, length: 1 << 20 };
        let mut memory = HostMemory::new(&offer, None).unwrap();
        let flags = MapFlags::PRIVATE;
        // SAFETY: a new mapping.
        let own =
            unsafe { mmap_anonymous(std::ptr::null_mut(), 8192, PAGE_ACCESS, flags) }.unwrap().cast::<AtomicUsize>();
        let (address, arena_address) = (own.expose_provenance() as u64, offer.base + 12_288);
        // SAFETY: pages of this test, and words in them, accessed only atomically.
        unsafe {
            let (program, worker) = (&*own, AtomicUsize::from_ptr(pointer(arena_address).cast()));
            program.store(1, Ordering::Relaxed);
            memory.share_program_pages(arena_address, address, 8192).unwrap();
            assert_eq!(program.load(Ordering::Relaxed), 1, "there is no program yet");
            let file = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
            ftruncate(&file, 16_384).unwrap();
            memory.join(file.as_fd()).unwrap();
            assert_eq!(
                memory.share_program_pages(arena_address, address, 8192),
                Err(Code::INVALID_VALUE),
                "beyond the file's end"
            );
            memory.share_program_pages(arena_address, address, 4096).unwrap();
            worker.store(7, Ordering::Relaxed);
            assert_eq!(program.load(Ordering::Relaxed), 7);
            replace_by_private_pages(address, 4096).unwrap();
            assert_eq!((program.load(Ordering::Relaxed), worker.load(Ordering::Relaxed)), (0, 7));
        }
    }

    #[test]
    fn places_end_with_the_file_of_the_program() {
        let offer = ArenaRange { kind: ArenaKind::PINNED, base: 0x3f00_0000_0000, length: 1 << 20 };
        let mut memory = HostMemory::new(&offer, None).unwrap();
        assert_eq!(memory.range(), offer);
        assert!(memory.pointer_to(offer.base + 4096, offer.length - 4096).is_ok());
        let file = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 8192).unwrap();
        memory.join(file.as_fd()).unwrap();
        assert_eq!(memory.pointer_to(offer.base + 4096, 4096).map(<*mut void>::addr), Ok(offer.base as usize + 4096));
        for (address, size) in [(offer.base + 4096, 4097), (offer.base - 1, 2), (offer.base, u64::MAX)] {
            assert_eq!(memory.pointer_to(address, size), Err(Code::INVALID_VALUE), "{address:x} {size}");
        }
        assert!(memory.has(offer.base) && !memory.has(offer.base + offer.length));
        assert!(HostMemory::new(&offer, None).is_err());
    }
}

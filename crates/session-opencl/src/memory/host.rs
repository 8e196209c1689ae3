//! Memory that the program has too, at the same addresses: where its buffers of `CL_MEM_ALLOC_HOST_PTR` are mapped.
//!
//! On processors a buffer lies there, and its contents are memory of the program's, not of the session's. On other devices
//! it is made over this memory too, where the driver then maps it; its contents are the device's. Data of commands lies there too, in blocks that are the program's to give
//! out. A session that is rebuilt has pages of its own there until its program
//! comes, whose memory takes their place.
//!
//! Fine-grained shared virtual memory is of it too: it lies at the address that the driver gave as well, on both sides.

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

/// How images of a context lie in memory: the context, the kind, the order of channels, bytes of an element, and the accesses that
/// kernels have. The type of channels says what their bytes mean, and not where they lie.
pub(crate) type ImageLayout = (u32, u32, u32, usize, u64);

/// The accesses that kernels have to a memory object, among its flags: `CL_MEM_READ_WRITE` and the like. Drivers have some formats
/// for some of them alone.
pub(crate) const KERNEL_ACCESSES: u64 = 0b111;

/// Set to `driver`, has buffers of processors mapped as those of other devices are; set to `copy`, has those of all copied by
/// commands, as after a restore: to compare the ways.
const MAPS_VARIABLE: &str = "KATYDID_OPENCL_MAPS";

/// How buffers are in this memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MapMode {
    /// Those of processors lie there, those of other devices are mapped there by their drivers.
    InPlace,
    /// All are mapped by their drivers.
    Driver,
    /// No driver maps buffers: commands copy.
    Copy,
}

/// How it is to be.
pub(crate) fn map_mode() -> MapMode {
    match std::env::var(MAPS_VARIABLE).as_deref() {
        Ok("driver") => MapMode::Driver,
        Ok("copy") => MapMode::Copy,
        _ => MapMode::InPlace,
    }
}

/// The memory; there is none on a stream.
#[derive(Debug)]
pub struct HostMemory {
    arena: Reservation,
    /// The program's memory, once it is there. It never becomes shorter.
    shared: Option<OwnedFd>,
    /// Parts of it that commands read.
    held_bytes: Arc<AtomicUsize>,
    /// The blocks that the worker has unshared, once there were any.
    unshared: Option<Arc<UnsharedPages>>,
}

impl HostMemory {
    /// Takes an offered range for the program's memory, or for memory that is to be the program's.
    ///
    /// # Errors
    ///
    /// Something else lies there, or what the system refuses.
    pub fn new(offer: &ArenaRange, shared: Option<BorrowedFd<'_>>) -> Result<Self, ReserveError> {
        let arena = Reservation::at(offer.base, offer.length)?;
        let mut memory = Self { arena, shared: None, held_bytes: Arc::default(), unshared: None };
        match shared {
            Some(shared) => memory.join(shared)?,
            None => memory.arena.map_private(0, offer.length)?,
        }
        Ok(memory)
    }

    /// The program is there: its memory takes the place of what was mapped.
    pub(crate) fn join(&mut self, shared: BorrowedFd<'_>) -> Result<(), ReserveError> {
        self.shared = Some(self.arena.join(shared)?);
        self.unshared = None;
        Ok(())
    }

    /// The range of the memory, in the handshake's form.
    #[must_use]
    pub fn range(&self) -> ArenaRange {
        let Range { start, end } = self.arena.range();
        ArenaRange { kind: ArenaKind::PINNED, base: start, length: end - start }
    }

    /// Whether an address lies in the range, whatever is there.
    pub(crate) fn has(&self, address: u64) -> bool {
        self.arena.range().contains(&address)
    }

    /// Takes over what a command reads, until the result is dropped: the program knows it by a word at this address. None if
    /// no word can be there.
    pub(crate) fn hold(&self, word: u64) -> Option<StagedRead> {
        let pointer = self.pointer_to(word, 4).ok().filter(|_| word.is_multiple_of(4))?;
        Some(StagedRead::new(pointer.expose_provenance(), &self.held_bytes))
    }

    /// How many parts commands are still reading.
    pub(crate) fn parts_in_use(&self) -> usize {
        self.held_bytes.load(Ordering::Acquire)
    }

    /// The unshared blocks; with `is_wanted`, some are to come. None where there cannot be any.
    pub(crate) fn unshared(&mut self, is_wanted: bool) -> Option<Arc<UnsharedPages>> {
        if self.unshared.is_none() && is_wanted {
            let file = self.shared.as_ref()?.try_clone().ok()?;
            self.unshared = UnsharedPages::new(file, self.arena.range()).ok();
        }
        self.unshared.clone()
    }

    /// The program has mapped a region that begins at an address, or has it mapped no more.
    pub(crate) fn count_map(&self, address: u64, is_mapped: bool) {
        if let Some(unshared) = &self.unshared {
            unshared.count_map(address, is_mapped);
        }
    }

    /// Whether what lies at an address is not what the program has there.
    pub(crate) fn is_unshared(&self, address: u64) -> bool {
        self.unshared.as_ref().is_some_and(|unshared| unshared.view(address).is_some())
    }

    /// Maps what the program has at `place` at another address too, in place of what lies there: whole pages. Nothing before the
    /// program is there.
    ///
    /// # Errors
    ///
    /// `CL_INVALID_VALUE` if not all of it is memory of the program's, `CL_OUT_OF_RESOURCES` if the system refuses.
    ///
    /// # Safety
    ///
    /// The pages at the address are the caller's to give away, and no thread refers to them.
    pub(crate) unsafe fn share_program_pages(&self, arena_address: u64, address: u64, bytes: u64) -> Result<(), Code> {
        self.pointer_to(arena_address, bytes)?;
        let Some(file) = &self.shared else { return Ok(()) };
        let (start, flags) = (pointer(address), MapFlags::SHARED | MapFlags::FIXED);
        // SAFETY: by the contract.
        let mapped =
            unsafe { mmap(start, bytes as usize, PAGE_ACCESS, flags, file, arena_address - self.arena.range().start) };
        mapped.map(drop).map_err(|_| Code::OUT_OF_RESOURCES)
    }

    /// Where in this process the program's bytes at an address are.
    ///
    /// # Errors
    ///
    /// `CL_INVALID_VALUE` if not all of them are memory of the program's.
    pub(crate) fn pointer_to(&self, address: u64, size: u64) -> Result<*mut void, Code> {
        let Range { start, end } = self.arena.range();
        // Beyond the file's end there would be a signal.
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

/// Puts pages of zeros where [`HostMemory::share_program_pages`] has put the program's.
///
/// # Errors
///
/// `CL_OUT_OF_RESOURCES`: the program's are still there.
///
/// # Safety
///
/// It has put them there, and no thread refers to them.
pub(crate) unsafe fn replace_by_private_pages(address: u64, bytes: u64) -> Result<(), Code> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
    // SAFETY: by the contract.
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
        // SAFETY: pages of this test's, and words in them, touched by atomics alone.
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

//! The only module that touches memory that a peer can write at any moment.
//!
//! No function lends a plain reference into a mapping. Words that both sides use are atomics. Everything else is copied by
//! instructions that are opaque to the compiler, so a racing peer can spoil the copied values and nothing else. The caller checks
//! values after they have been copied.

#![expect(unsafe_code, reason = "mapped memory has no safe interface")]

use std::io;
use std::os::fd::AsFd;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::mm::{
    Advice, MapFlags, MprotectFlags, MremapFlags, ProtFlags, madvise, mmap, mmap_anonymous, mprotect, mremap, munmap,
};

/// Copies up to this length move words. Longer ones use the string instruction, which is slow to start.
const MAX_WORDWISE_BYTES: usize = 256;
const READ_AND_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// A shared mapping of a file's first bytes, unmapped when dropped. It can be suspended, which keeps its addresses reserved with
/// nothing at them.
#[derive(Debug)]
pub(crate) struct SharedMapping {
    base: *mut u8,
    length: usize,
    abandoned: AtomicBool,
}

// SAFETY: the mapping belongs to this value alone, and all access to it is atomic or by racing-safe copies.
unsafe impl Send for SharedMapping {}
// SAFETY: as above; no method relies on exclusive access.
unsafe impl Sync for SharedMapping {}

impl SharedMapping {
    /// Maps `length` bytes of `fd` for reading and writing, at `address` if that is free. The file must keep that length (the
    /// caller checks seals).
    pub(crate) fn map(fd: impl AsFd, length: usize, address: usize) -> io::Result<Self> {
        let address = ptr::with_exposed_provenance_mut(address);
        // SAFETY: a new mapping; where memory is already, the system chooses another place.
        let base = unsafe { mmap(address, length, READ_AND_WRITE, MapFlags::SHARED, fd, 0) }?;
        Ok(Self { base: base.cast(), length, abandoned: AtomicBool::new(false) })
    }

    /// Takes the file away and keeps its addresses for [`SharedMapping::restore`]. Until then any access to them faults; the
    /// caller must make sure that there is none. An empty file keeps them: for private memory CRIU asks for each page (before
    /// Linux 6.7), and 64 GiB have 16 million. A program that may open no more files gets private memory nevertheless.
    pub(crate) fn suspend(&self) -> io::Result<()> {
        let (address, access) = (self.base.cast(), ProtFlags::empty());
        let flags = MapFlags::FIXED | MapFlags::NORESERVE;
        match memfd_create("katydid-away", MemfdFlags::CLOEXEC) {
            // SAFETY: replaces exactly this value's mapping, which no thread uses, by the caller's contract.
            Ok(nothing) => unsafe { mmap(address, self.length, access, flags | MapFlags::SHARED, nothing, 0) },
            // SAFETY: as above.
            Err(_) => unsafe { mmap_anonymous(address, self.length, access, flags | MapFlags::PRIVATE) },
        }?;
        self.keep_from_children()
    }

    /// Maps the file once more, wherever there is room.
    pub(crate) fn second_view(&self) -> io::Result<Self> {
        // SAFETY: an old length of 0 makes a further mapping of the same shared pages; this one stays.
        let base = unsafe { mremap(self.base.cast(), 0, self.length, MremapFlags::MAYMOVE) }?;
        Ok(Self { base: base.cast(), length: self.length, abandoned: AtomicBool::new(false) })
    }

    /// Maps another file, of the same length, where the one before was.
    pub(crate) fn restore(&self, fd: impl AsFd) -> io::Result<()> {
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: replaces exactly this value's mapping, which no thread uses while it is suspended.
        unsafe { mmap(self.base.cast(), self.length, READ_AND_WRITE, flags, fd, 0) }?;
        self.keep_from_children()
    }

    /// Keeps the mapping out of children that are forked later, and out of core dumps: a program's dump would contain a gigabyte
    /// of reply slots.
    pub(crate) fn keep_from_children(&self) -> io::Result<()> {
        // SAFETY: the range is exactly this value's mapping; what a dump holds changes nothing in it.
        unsafe { madvise(self.base.cast(), self.length, Advice::LinuxDontDump) }?;
        // SAFETY: as above; a child in which the mapping is missing calls `abandon`.
        Ok(unsafe { madvise(self.base.cast(), self.length, Advice::LinuxDontFork) }?)
    }

    /// Allocates the pages of a range before their first use. Where the system cannot (before Linux 5.14), each page comes at its
    /// first use, which takes microseconds.
    pub(crate) fn populate(&self, offset: usize, length: usize) {
        self.check(offset, length, 1);
        // SAFETY: in bounds by the check; changes no contents.
        let _ = unsafe { madvise(self.base.add(offset).cast(), length, Advice::LinuxPopulateWrite) };
    }

    /// Backs everything from `offset` on with large pages where the system has them, so that fewer are needed.
    pub(crate) fn use_large_pages(&self, offset: usize) {
        // SAFETY: within this value's mapping, by the check; contents stay as they are. Without large pages everything works as
        // well.
        let _ = unsafe { madvise(self.pointer(offset).cast(), self.length - offset, Advice::LinuxHugepage) };
    }

    /// Makes these whole pages accessible or inaccessible. Their contents stay.
    pub(crate) fn set_access(&self, offset: usize, length: usize, is_open: bool) -> io::Result<()> {
        self.check(offset, length, 1);
        let access = if is_open { MprotectFlags::READ | MprotectFlags::WRITE } else { MprotectFlags::empty() };
        // SAFETY: within this value's mapping, by the check; no thread touches inaccessible pages, by the caller's contract.
        unsafe { mprotect(self.pointer(offset).cast(), length, access) }?;
        Ok(())
    }

    /// In a forked child, where the mapping is missing: keeps it from being unmapped, since its addresses may be in use.
    pub(crate) fn abandon(&self) {
        self.abandoned.store(true, Ordering::Relaxed);
    }

    /// Returns a 32-bit word that both sides use.
    pub(crate) fn word(&self, offset: usize) -> &AtomicU32 {
        self.check(offset, 4, 4);
        // SAFETY: in bounds and aligned by the check; the mapping lives as long as the borrow of `self`; this side uses these
        // words as atomics only.
        unsafe { AtomicU32::from_ptr(self.base.add(offset).cast()) }
    }

    /// Returns a 64-bit word that both sides use.
    pub(crate) fn long_word(&self, offset: usize) -> &AtomicU64 {
        self.check(offset, 8, 8);
        // SAFETY: as in `word`.
        unsafe { AtomicU64::from_ptr(self.base.add(offset).cast()) }
    }

    /// Copies `bytes` into the mapping.
    pub(crate) fn copy_in(&self, offset: usize, bytes: &[u8]) {
        self.check(offset, bytes.len(), 1);
        // SAFETY: source is a slice, target in bounds by the check; they cannot overlap, since no slice is ever made
        // of the mapping.
        unsafe { copy(bytes.as_ptr(), self.base.add(offset), bytes.len()) }
    }

    /// Copies out of the mapping.
    pub(crate) fn copy_out(&self, offset: usize, bytes: &mut [u8]) {
        self.check(offset, bytes.len(), 1);
        // SAFETY: as in `copy_in`, the other way.
        unsafe { copy(self.base.add(offset), bytes.as_mut_ptr(), bytes.len()) }
    }

    /// Appends bytes of the mapping to a vector.
    pub(crate) fn append_to(&self, offset: usize, length: usize, bytes: &mut Vec<u8>) {
        self.check(offset, length, 1);
        bytes.reserve(length);
        // SAFETY: source in bounds by the check; `reserve` made room for `length` bytes behind the vector's end, which
        // are initialized when `set_len` counts them in.
        unsafe {
            copy(self.base.add(offset), bytes.as_mut_ptr().add(bytes.len()), length);
            bytes.set_len(bytes.len() + length);
        }
    }

    /// Returns the address of a byte, for raw copies elsewhere.
    pub(crate) fn pointer(&self, offset: usize) -> *mut u8 {
        self.check(offset, 1, 1);
        self.base.wrapping_add(offset)
    }

    /// Offsets come from the layout and from bounded numbers; the assertion makes the unsafe code above local.
    fn check(&self, offset: usize, length: usize, align: usize) {
        let end = offset.checked_add(length);
        assert!(offset.is_multiple_of(align) && end.is_some_and(|end| end <= self.length), "shared memory layout");
    }
}

impl Drop for SharedMapping {
    fn drop(&mut self) {
        if !self.abandoned.load(Ordering::Relaxed) {
            // SAFETY: the mapping is this value's own, and nothing borrowed from it outlives it.
            // An error would mean that it is gone already.
            let _ = unsafe { munmap(self.base.cast(), self.length) };
        }
    }
}

/// Copies memory that a peer may be writing.
///
/// # Safety
/// Both ranges are valid for `length` bytes and do not overlap. The range that is not shared is the caller's alone.
#[cfg(target_arch = "x86_64")]
unsafe fn copy(from: *const u8, to: *mut u8, length: usize) {
    if length > MAX_WORDWISE_BYTES {
        // SAFETY: moves exactly the caller's ranges; the direction flag is clear by the ABI.
        unsafe {
            std::arch::asm!("rep movsb", inout("rcx") length => _, inout("rsi") from => _, inout("rdi") to => _,
                options(nostack, preserves_flags));
        }
        return;
    }
    let word_count = length / 8;
    for word in 0..word_count {
        // SAFETY: within the caller's ranges; the instructions need no alignment.
        unsafe {
            std::arch::asm!("mov {word}, [{from}]", "mov [{to}], {word}", from = in(reg) from.add(word * 8),
                to = in(reg) to.add(word * 8), word = out(reg) _, options(nostack, preserves_flags));
        }
    }
    // SAFETY: the bytes that the words left, within the caller's ranges.
    unsafe { copy_bytes(from.add(word_count * 8), to.add(word_count * 8), length % 8) }
}

/// The portable form of the function above, for other architectures.
///
/// # Safety
/// Copies `length` bytes, by the portable instructions.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn copy(from: *const u8, to: *mut u8, length: usize) {
    let _ = MAX_WORDWISE_BYTES;
    // SAFETY: the caller's own promise.
    unsafe { copy_bytes(from, to, length) }
}

/// # Safety
/// Copies byte by byte; the contract is that of [`copy`].
unsafe fn copy_bytes(from: *const u8, to: *mut u8, length: usize) {
    for at in 0..length {
        // SAFETY: within the caller's ranges; volatile, so that the compiler assumes nothing about the values.
        unsafe { to.add(at).write_volatile(from.add(at).read_volatile()) }
    }
}

#[cfg(test)]
mod tests {
    use std::env;
    use std::process::Command;

    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    use super::*;
    use crate::shm::layout::CHANNEL_ADDRESS;

    fn shared(length: usize) -> SharedMapping {
        let fd = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, length as u64).unwrap();
        SharedMapping::map(&fd, length, CHANNEL_ADDRESS).unwrap()
    }

    #[test]
    fn copies_of_every_length_arrive() {
        let shared = shared(8192);
        for length in (0..80).chain([255, 256, 257, 1000, 4096]) {
            let sent: Vec<u8> = (0..length).map(|at| (at * 7 + length) as u8).collect();
            shared.copy_in(13, &sent);
            let mut got = vec![0; length];
            shared.copy_out(13, &mut got);
            let mut appended = b"before".to_vec();
            shared.append_to(13, length, &mut appended);
            assert_eq!((&got, &appended[6..]), (&sent, &sent[..]));
        }
    }

    #[test]
    #[should_panic(expected = "shared memory layout")]
    fn a_copy_past_the_end_is_stopped() {
        shared(4096).copy_in(4090, &[0; 7]);
    }

    #[test]
    fn a_suspended_mapping_is_restored_at_its_addresses() {
        let file = || {
            let fd = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
            ftruncate(&fd, 8192).unwrap();
            fd
        };
        let (one, other) = (file(), file());
        let shared = SharedMapping::map(&one, 8192, CHANNEL_ADDRESS).unwrap();
        shared.copy_in(100, b"first");
        let old_address = shared.pointer(0);
        let line = || {
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            let start = format!("{:x}-", old_address.addr());
            maps.lines().find(|line| line.starts_with(&start)).map(str::to_owned).unwrap()
        };
        assert!(line().contains("memfd:test"), "{}", line());
        shared.suspend().unwrap();
        assert!(line().contains("---s") && line().contains("memfd:katydid-away"), "{}", line());
        shared.restore(&other).unwrap();
        let mut got = [1; 5];
        shared.copy_out(100, &mut got);
        assert_eq!((shared.pointer(0), got), (old_address, [0; 5]));
        shared.suspend().unwrap();
        shared.restore(&one).unwrap();
        shared.copy_out(100, &mut got);
        assert_eq!(&got, b"first");
    }

    /// Set for the process of the test below, which is alone in it: limits hold for all threads of a process.
    const ALONE: &str = "KATYDID_TEST_ALONE";

    #[test]
    fn a_mapping_without_a_file_can_be_suspended() {
        if env::var_os(ALONE).is_none() {
            let mut process = Command::new(env::current_exe().unwrap());
            let test = "shm::shared_mapping::tests::a_mapping_without_a_file_can_be_suspended";
            let output = process.args(["--exact", test]).env(ALONE, "1").output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(text.contains("1 passed"), "{text}{}", String::from_utf8_lossy(&output.stderr));
            return;
        }
        let fd = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, 8192).unwrap();
        let shared = SharedMapping::map(&fd, 8192, CHANNEL_ADDRESS).unwrap();
        shared.copy_in(100, b"first");
        let usual = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..usual }).unwrap();
        let outcomes = [memfd_create("test", MemfdFlags::CLOEXEC).map(drop).is_ok(), shared.suspend().is_ok()];
        setrlimit(Resource::Nofile, usual).unwrap();
        assert_eq!(outcomes, [false, true]);
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let start = format!("{:x}-", shared.pointer(0).addr());
        assert!(maps.lines().any(|line| line.starts_with(&start) && line.contains("---p")), "{maps}");
        shared.restore(&fd).unwrap();
        let mut got = [0; 5];
        shared.copy_out(100, &mut got);
        assert_eq!(&got, b"first");
    }

    #[test]
    fn words_are_shared() {
        let fd = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, 4096).unwrap();
        let map = || SharedMapping::map(&fd, 4096, CHANNEL_ADDRESS).unwrap();
        let (one, other) = (map(), map());
        one.word(64).store(7, Ordering::Release);
        one.long_word(128).store(u64::MAX, Ordering::Release);
        assert_eq!(other.word(64).load(Ordering::Acquire), 7);
        assert_eq!(other.long_word(128).load(Ordering::Acquire), u64::MAX);
    }
}

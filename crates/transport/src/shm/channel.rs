//! The shared memory of a link ([`crate::shm::layout`]): how it is made, and the worker's checks before it maps it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};

use crate::shm::layout::{
    HEAD_OFFSET, MAX_LINK_THREADS, PROGRAM_ASLEEP_OFFSET, REPLY_SLEEPER_OFFSET, REPLY_SLOT_BYTES, REPLY_SLOTS_OFFSET,
    RING_BYTES, RING_OFFSET, RING_WINDOW_BYTES, TAIL_OFFSET, WORKER_ASLEEP_OFFSET, WORKER_BARRIERS_OFFSET,
};
use crate::shm::reply::ReplyCell;
use crate::shm::ring::{Memory, RingSide};
use crate::shm::shared_mapping::SharedMapping;
use crate::sync::{barrier, wait};

/// State of a slot: the reply has not arrived.
const REPLY_WAITING: u32 = 0;
/// State of a slot: the reply is there.
const REPLY_ARRIVED: u32 = 1;

/// Seals against a change of length after the check, which could make reads fault.
const CHANNEL_SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// Returns the offset of a thread's reply slot. Threads count from 1.
pub(crate) fn reply_slot(thread: u32) -> Option<usize> {
    let index = (thread as usize).checked_sub(1).filter(|index| *index < MAX_LINK_THREADS)?;
    Some(REPLY_SLOTS_OFFSET + index * REPLY_SLOT_BYTES)
}

/// The words of a reply slot, by which both sides signal each other.
#[derive(Debug)]
pub(crate) struct ReplyWords<'a> {
    shared: &'a SharedMapping,
    offset: usize,
}

impl<'a> ReplyWords<'a> {
    pub(crate) fn new(shared: &'a SharedMapping, offset: usize) -> Self {
        Self { shared, offset }
    }

    /// Program: clears the state before a request. The worker sees that before the request, since publishing that is a release.
    pub(crate) fn clear(&self) {
        self.state().store(REPLY_WAITING, Ordering::Relaxed);
    }

    fn state(&self) -> &AtomicU32 {
        self.shared.word(self.offset)
    }

    fn sleeper(&self) -> &AtomicU32 {
        self.shared.word(self.offset + REPLY_SLEEPER_OFFSET)
    }
}

impl ReplyCell for ReplyWords<'_> {
    fn set_arrived(&self) {
        self.state().store(REPLY_ARRIVED, Ordering::Release);
    }

    fn has_arrived(&self) -> bool {
        self.state().load(Ordering::Acquire) == REPLY_ARRIVED
    }

    fn set_asleep(&self, asleep: bool) {
        self.sleeper().store(asleep.into(), Ordering::Relaxed);
    }

    fn is_asleep(&self) -> bool {
        self.sleeper().load(Ordering::Relaxed) != 0
    }

    fn fence(&self) {
        fence(Ordering::SeqCst);
    }

    fn sleep(&self) {
        wait::sleep(self.state(), REPLY_WAITING);
    }

    fn wake(&self) {
        wait::wake(self.state());
    }
}

/// The seals of memory that grows: the worker checks its length before it uses more of it.
const GROWING_SEALS: SealFlags = SealFlags::SHRINK;

/// Creates memory of `length` bytes whose length is fixed. It has no pages yet.
pub(crate) fn create(name: &str, length: u64) -> io::Result<OwnedFd> {
    sealed(name, length, CHANNEL_SEALS)
}

/// Creates memory of `length` bytes that may become longer.
pub(crate) fn create_growing(name: &str, length: u64) -> io::Result<OwnedFd> {
    sealed(name, length, GROWING_SEALS)
}

fn sealed(name: &str, length: u64, seals: SealFlags) -> io::Result<OwnedFd> {
    let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&fd, length)?;
    fcntl_add_seals(&fd, seals)?;
    Ok(fd)
}

/// Checks that a peer's descriptor is memory of exactly this length that cannot change.
pub(crate) fn check(fd: impl AsFd, length: u64) -> Result<(), &'static str> {
    check_seals(&fd, CHANNEL_SEALS)?;
    let actual = fstat(&fd).map_err(|_| "its length cannot be read")?.st_size.cast_unsigned();
    if actual != length {
        return Err("it does not have the length it should have");
    }
    Ok(())
}

/// Worker: checks that the descriptor is memory that never becomes shorter.
pub(crate) fn check_growing(fd: impl AsFd) -> Result<(), &'static str> {
    check_seals(fd, GROWING_SEALS)
}

fn check_seals(fd: impl AsFd, seals: SealFlags) -> Result<(), &'static str> {
    let actual = fcntl_get_seals(&fd).map_err(|_| "a descriptor is not a memfd")?;
    if actual.contains(seals) { Ok(()) } else { Err("its length is not sealed") }
}

/// The shared memory, as the ring uses it.
#[derive(Debug)]
pub(crate) struct RingMemory {
    shared: Arc<SharedMapping>,
    /// Whether this process takes part in the worker's barriers.
    is_registered: AtomicBool,
}

impl RingMemory {
    pub(crate) fn new(shared: Arc<SharedMapping>) -> Self {
        Self { shared, is_registered: AtomicBool::new(false) }
    }

    /// Program: sets whether its threads take part in barriers.
    pub(crate) fn set_registered(&self, is_registered: bool) {
        self.is_registered.store(is_registered, Ordering::Release);
    }

    /// Worker: announces whether it runs barriers, before it reads.
    pub(crate) fn announce_barriers(&self) {
        self.shared.word(WORKER_BARRIERS_OFFSET).store(barrier::everywhere().into(), Ordering::Release);
    }

    /// Program: returns whether the worker runs a barrier on this process's processors before it sleeps.
    fn has_barriers(&self) -> bool {
        self.is_registered.load(Ordering::Relaxed)
            && self.shared.word(WORKER_BARRIERS_OFFSET).load(Ordering::Relaxed) == 1
    }

    /// Wakes the worker's thread that may sleep here, whether or not its flag is set.
    pub(crate) fn wake_all(&self) {
        self.flag(RingSide::Consumer).store(0, Ordering::Release);
        wait::wake(self.flag(RingSide::Consumer));
    }

    fn flag(&self, side: RingSide) -> &AtomicU32 {
        self.shared.word(match side {
            RingSide::Producer => PROGRAM_ASLEEP_OFFSET,
            RingSide::Consumer => WORKER_ASLEEP_OFFSET,
        })
    }

    fn counter_word(&self, side: RingSide) -> &std::sync::atomic::AtomicU64 {
        self.shared.long_word(match side {
            RingSide::Producer => TAIL_OFFSET,
            RingSide::Consumer => HEAD_OFFSET,
        })
    }
}

impl Memory for RingMemory {
    fn capacity(&self) -> u64 {
        RING_BYTES as u64
    }

    fn window(&self) -> u64 {
        RING_WINDOW_BYTES as u64
    }

    fn counter(&self, side: RingSide) -> u64 {
        self.counter_word(side).load(Ordering::Acquire)
    }

    fn publish(&self, side: RingSide, value: u64) {
        self.counter_word(side).store(value, Ordering::Release);
    }

    fn set_asleep(&self, side: RingSide, asleep: bool) {
        self.flag(side).store(asleep.into(), Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if asleep && side == RingSide::Consumer {
            // Where the kernel refuses barriers, the shared word says so, and the program fences.
            barrier::everywhere();
        }
    }

    fn wake(&self, side: RingSide) {
        if side == RingSide::Consumer && self.has_barriers() {
            barrier::light();
        } else {
            fence(Ordering::SeqCst);
        }
        if self.flag(side).load(Ordering::Relaxed) != 0 {
            self.flag(side).store(0, Ordering::Relaxed);
            wait::wake(self.flag(side));
        }
    }

    fn sleep(&self, side: RingSide) {
        wait::sleep(self.flag(side), 1);
    }

    fn copy_in(&self, offset: u64, bytes: &[u8]) {
        self.shared.copy_in(RING_OFFSET + offset as usize, bytes);
    }

    fn append_to(&self, offset: u64, length: u64, bytes: &mut Vec<u8>) {
        self.shared.append_to(RING_OFFSET + offset as usize, length as usize, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::layout::BUSY_WORDS_OFFSET;
    use crate::shm::layout::CHANNEL_BYTES;

    #[test]
    fn memory_that_can_shrink_is_refused() {
        let loose = memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&loose, 4096).unwrap();
        assert_eq!(check(&loose, 4096), Err("its length is not sealed"));
        assert_eq!(check_growing(&loose), Err("its length is not sealed"));
        assert_eq!(check(std::fs::File::open("/dev/null").unwrap(), 1), Err("a descriptor is not a memfd"));
    }

    #[test]
    fn memory_that_grows_never_shrinks() {
        let fd = create_growing("test", 8192).unwrap();
        assert_eq!((check_growing(&fd), check(&fd, 8192)), (Ok(()), Err("its length is not sealed")));
        ftruncate(&fd, 16384).unwrap();
        assert!(ftruncate(&fd, 8192).is_err());
    }

    #[test]
    fn memory_of_another_length_is_refused() {
        let fd = create("test", 8192).unwrap();
        assert_eq!(check(&fd, 8192), Ok(()));
        assert!(check(&fd, 4096).is_err() && check(&fd, 8193).is_err());
    }

    #[test]
    fn offsets_are_as_documented() {
        assert_eq!((RING_OFFSET, BUSY_WORDS_OFFSET, REPLY_SLOTS_OFFSET), (0x1000, 0x40_1000, 0x40_2000));
        assert_eq!((REPLY_SLOT_BYTES, CHANNEL_BYTES), (0x10_2000, 0x40c0_2000));
        assert_eq!(
            (reply_slot(0), reply_slot(1), reply_slot(1024)),
            (None, Some(REPLY_SLOTS_OFFSET), Some(CHANNEL_BYTES - REPLY_SLOT_BYTES))
        );
        assert_eq!((reply_slot(1025), reply_slot(u32::MAX)), (None, None));
    }
}

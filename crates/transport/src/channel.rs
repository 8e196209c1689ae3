//! The shared memory of a link: where everything lies, how it is made, and what the worker checks before it maps it.
//!
//! | offset                | bytes             | what                                                          |
//! |-----------------------|------------------:|---------------------------------------------------------------|
//! | [`TAIL`]              |                 8 | bytes written to the ring so far; by the program              |
//! | [`HEAD_COUNTER`]      |                 8 | bytes read from the ring so far; by the worker                |
//! | [`WORKER_ASLEEP`]     |                 4 | 1: the worker sleeps on this word                             |
//! | [`WORKER_BARRIERS`]   |                 4 | 1: the worker runs barriers (`barrier.rs`) before it sleeps   |
//! | [`PROGRAM_ASLEEP`]    |                 4 | 1: a program thread sleeps here until the ring has room       |
//! | [`APPEALS`]           |                 4 | how often the worker wanted memory back; a thread sleeps on it |
//! | [`RING`]              |             4 MiB | frames                                                        |
//! | [`BUSY`]              |              4096 | a word for each staging piece, 64 bytes apart; 0: free        |
//! | [`REPLIES`]           | 1024 x [`REPLY`]  | a place for each thread of the program; see below             |
//!
//! A program has the places closed of which no thread has made a call: `mlockall` fills what is open.
//!
//! A reply's place: a state word ([`WAITING`], [`ARRIVED`]), a word that is 1 while the thread sleeps on the state
//! ([`REPLY_SLEEPER`]), then the reply's frame, so that a reply of up to 24 bytes passes between processors as one cache line.
//! All of the reply is written by plain stores, the state last: an instruction that locks would wait until the frame is
//! written, and the thread, which looks all the time, would take the line away in between ([`crate::reply`]).
//!
//! The pieces themselves are memory of their own (`area.rs`), made by the worker, because no dump of the program is to
//! hold them.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};

use katydid_wire::frame::MAX_REPLY;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};

use crate::barrier;
use crate::reply::Words;
use crate::ring::{Memory, Side};
use crate::shared::Shared;
use crate::wait;

/// Of memory; what is registered with a driver begins at one.
pub(crate) const PAGE: usize = 4096;
/// Distance of words that different processors write.
const LINE: usize = 64;
/// The same of those that are written often: processors fetch lines in pairs, and ahead.
const APART: usize = 4 * LINE;

/// The program's counter.
pub(crate) const TAIL: usize = 0;
/// The worker's counter.
pub(crate) const HEAD_COUNTER: usize = APART;
/// Where the worker sleeps.
const WORKER_ASLEEP: usize = 2 * APART;
/// Whether the worker runs barriers.
const WORKER_BARRIERS: usize = WORKER_ASLEEP + 4;
/// Where the program sleeps.
const PROGRAM_ASLEEP: usize = 3 * APART;
/// Where the program's thread sleeps that gives back what lies idle.
pub(crate) const APPEALS: usize = 4 * APART;
/// The frames.
pub(crate) const RING: usize = PAGE;
/// Bytes of the ring.
pub(crate) const RING_LENGTH: usize = 4 << 20;
/// Bytes of it that a program uses that does not run far ahead of its worker: a thousand launches.
pub(crate) const WINDOW: usize = 128 << 10;
/// The words of the staging pieces.
pub(crate) const BUSY: usize = RING + RING_LENGTH;
/// Distance of those words.
pub(crate) const BUSY_STRIDE: usize = LINE;
/// The places for replies.
pub(crate) const REPLIES: usize = BUSY + PAGE;
/// How many there are: threads of the program that may use the link at once.
pub(crate) const SEATS: usize = 1024;
/// The word within a place that tells whether the thread sleeps.
const REPLY_SLEEPER: usize = 4;
/// The frame within a place.
pub(crate) const REPLY_FRAME: usize = 8;
/// Bytes of a place.
pub(crate) const REPLY: usize = (REPLY_FRAME + MAX_REPLY).next_multiple_of(PAGE);
/// Bytes of it all.
pub(crate) const LENGTH: usize = REPLIES + SEATS * REPLY;

/// State of a place: the reply has not arrived.
const WAITING: u32 = 0;
/// State of a place: the reply is there.
const ARRIVED: u32 = 1;

/// What no side may change after the other's check, or reading could fault.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// Where the reply for a thread is put; threads count from 1.
pub(crate) fn reply_place(thread: u32) -> Option<usize> {
    let seat = (thread as usize).checked_sub(1).filter(|seat| *seat < SEATS)?;
    Some(REPLIES + seat * REPLY)
}

/// The place of a reply as the sides see it that tell each other of it.
#[derive(Debug)]
pub(crate) struct ReplyWords<'a> {
    shared: &'a Shared,
    place: usize,
}

impl<'a> ReplyWords<'a> {
    pub(crate) fn new(shared: &'a Shared, place: usize) -> Self {
        Self { shared, place }
    }

    /// Program, before it asks. Seen by the worker before the request is, since publishing that is a release.
    pub(crate) fn clear(&self) {
        self.state().store(WAITING, Ordering::Relaxed);
    }

    fn state(&self) -> &AtomicU32 {
        self.shared.word(self.place)
    }

    fn sleeper(&self) -> &AtomicU32 {
        self.shared.word(self.place + REPLY_SLEEPER)
    }
}

impl Words for ReplyWords<'_> {
    fn set_arrived(&self) {
        self.state().store(ARRIVED, Ordering::Release);
    }

    fn has_arrived(&self) -> bool {
        self.state().load(Ordering::Acquire) == ARRIVED
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
        wait::sleep(self.state(), WAITING);
    }

    fn wake(&self) {
        wait::wake(self.state());
    }
}

/// The same of memory that grows: the worker looks at its length before it uses more of it.
const GROWING_SEALS: SealFlags = SealFlags::SHRINK;

/// Memory of `length` bytes, of which none is used yet, and whose length is fixed.
pub(crate) fn create(name: &str, length: u64) -> io::Result<OwnedFd> {
    sealed(name, length, SEALS)
}

/// The same, but it may become longer.
pub(crate) fn create_growing(name: &str, length: u64) -> io::Result<OwnedFd> {
    sealed(name, length, GROWING_SEALS)
}

fn sealed(name: &str, length: u64, seals: SealFlags) -> io::Result<OwnedFd> {
    let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&fd, length)?;
    fcntl_add_seals(&fd, seals)?;
    Ok(fd)
}

/// Whether a peer's descriptor is memory of just this length that cannot change it.
pub(crate) fn check(fd: impl AsFd, length: u64) -> Result<(), &'static str> {
    check_seals(&fd, SEALS)?;
    let found = fstat(&fd).map_err(|_| "its length cannot be read")?.st_size.cast_unsigned();
    if found != length {
        return Err("it does not have the length it should have");
    }
    Ok(())
}

/// Worker: whether the descriptor is memory that never becomes shorter.
pub(crate) fn check_growing(fd: impl AsFd) -> Result<(), &'static str> {
    check_seals(fd, GROWING_SEALS)
}

fn check_seals(fd: impl AsFd, seals: SealFlags) -> Result<(), &'static str> {
    let found = fcntl_get_seals(&fd).map_err(|_| "a descriptor is no memfd")?;
    if found.contains(seals) { Ok(()) } else { Err("its length is not sealed") }
}

/// The shared memory as a ring.
#[derive(Debug)]
pub(crate) struct RingMemory {
    shared: Arc<Shared>,
    /// This process takes part in barriers of the worker's.
    is_registered: AtomicBool,
}

impl RingMemory {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, is_registered: AtomicBool::new(false) }
    }

    /// Program: whether its threads take part in barriers from now on.
    pub(crate) fn set_registered(&self, is_registered: bool) {
        self.is_registered.store(is_registered, Ordering::Release);
    }

    /// Worker, before it reads: says whether it runs barriers.
    pub(crate) fn announce_barriers(&self) {
        self.shared.word(WORKER_BARRIERS).store(barrier::everywhere().into(), Ordering::Release);
    }

    /// Program: the worker runs a barrier on this process's processors before it sleeps.
    fn has_barriers(&self) -> bool {
        self.is_registered.load(Ordering::Relaxed) && self.shared.word(WORKER_BARRIERS).load(Ordering::Relaxed) == 1
    }

    fn flag(&self, side: Side) -> &AtomicU32 {
        self.shared.word(match side {
            Side::Producer => PROGRAM_ASLEEP,
            Side::Consumer => WORKER_ASLEEP,
        })
    }

    fn counter_word(&self, side: Side) -> &std::sync::atomic::AtomicU64 {
        self.shared.long_word(match side {
            Side::Producer => TAIL,
            Side::Consumer => HEAD_COUNTER,
        })
    }
}

impl Memory for RingMemory {
    fn capacity(&self) -> u64 {
        RING_LENGTH as u64
    }

    fn window(&self) -> u64 {
        WINDOW as u64
    }

    fn counter(&self, side: Side) -> u64 {
        self.counter_word(side).load(Ordering::Acquire)
    }

    fn publish(&self, side: Side, value: u64) {
        self.counter_word(side).store(value, Ordering::Release);
    }

    fn set_asleep(&self, side: Side, asleep: bool) {
        self.flag(side).store(asleep.into(), Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if asleep && side == Side::Consumer {
            // Where it is refused, the program was told so, and fences.
            barrier::everywhere();
        }
    }

    fn wake(&self, side: Side) {
        if side == Side::Consumer && self.has_barriers() {
            barrier::light();
        } else {
            fence(Ordering::SeqCst);
        }
        if self.flag(side).load(Ordering::Relaxed) != 0 {
            self.flag(side).store(0, Ordering::Relaxed);
            wait::wake(self.flag(side));
        }
    }

    fn sleep(&self, side: Side) {
        wait::sleep(self.flag(side), 1);
    }

    fn copy_in(&self, place: u64, bytes: &[u8]) {
        self.shared.copy_in(RING + place as usize, bytes);
    }

    fn append_to(&self, place: u64, length: u64, bytes: &mut Vec<u8>) {
        self.shared.append_to(RING + place as usize, length as usize, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_can_shrink_is_refused() {
        let loose = memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&loose, 4096).unwrap();
        assert_eq!(check(&loose, 4096), Err("its length is not sealed"));
        assert_eq!(check_growing(&loose), Err("its length is not sealed"));
        assert_eq!(check(std::fs::File::open("/dev/null").unwrap(), 1), Err("a descriptor is no memfd"));
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
    fn places_are_as_documented() {
        assert_eq!((RING, BUSY, REPLIES), (0x1000, 0x40_1000, 0x40_2000));
        assert_eq!((REPLY, LENGTH), (0x10_2000, 0x40c0_2000));
        assert_eq!((reply_place(0), reply_place(1), reply_place(1024)), (None, Some(REPLIES), Some(LENGTH - REPLY)));
        assert_eq!((reply_place(1025), reply_place(u32::MAX)), (None, None));
    }
}

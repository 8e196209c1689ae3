//! The layout of a link's shared memory.
//!
//! | offset                | bytes             | what                                                          |
//! |-----------------------|------------------:|---------------------------------------------------------------|
//! | [`TAIL_OFFSET`]              |                 8 | bytes written to the ring so far; by the program              |
//! | [`HEAD_OFFSET`]      |                 8 | bytes read from the ring so far; by the worker                |
//! | [`WORKER_ASLEEP_OFFSET`]     |                 4 | 1: the worker sleeps on this word                             |
//! | [`WORKER_BARRIERS_OFFSET`]   |                 4 | 1: the worker runs barriers (`sync/barrier.rs`) before it sleeps   |
//! | [`PROGRAM_ASLEEP_OFFSET`]    |                 4 | 1: a program thread sleeps here until the ring has room       |
//! | [`RECLAIM_NOTICES_OFFSET`]            |                 4 | number of reclaim notices; a thread sleeps on it              |
//! | [`RING_OFFSET`]              |             4 MiB | frames                                                        |
//! | [`BUSY_WORDS_OFFSET`]              |              4096 | a word for each staging piece, 64 bytes apart; 0: free        |
//! | [`REPLY_SLOTS_OFFSET`]           | 1024 x [`REPLY_SLOT_BYTES`]  | a slot for each thread of the program; see below              |
//!
//! A program keeps a slot inaccessible until its thread makes a call: `mlockall` fills accessible pages.
//!
//! A reply slot holds a state word (0: the thread waits, 1: the reply is there), a sleeper word, then the reply's frame.
//! The sleeper word ([`REPLY_SLEEPER_OFFSET`]) is 1 while the thread sleeps on the state. So a reply of up to 24 bytes passes
//! between processors as one cache line. Plain stores write all of the reply, the state last. A locked instruction would
//! wait until the frame is written. The thread polls all the time, and would take the line away in between
//! ([`crate::shm::reply`]).
//!
//! The pieces themselves are memory of their own (`shm/staging_map.rs`). The worker makes them, because no dump of the
//! program may hold them.

pub(crate) use katydid_wire::PAGE_BYTES;
use katydid_wire::frame::MAX_REPLY_BYTES;

/// Distance of words that different processors write.
pub(crate) const CACHE_LINE_BYTES: usize = 64;
/// Distance of words that different processors write often: processors fetch lines in pairs, and ahead.
pub(crate) const WORD_STRIDE_BYTES: usize = 4 * CACHE_LINE_BYTES;

/// Offset of the program's counter: bytes written to the ring so far.
pub(crate) const TAIL_OFFSET: usize = 0;
/// Offset of the worker's counter: bytes read from the ring so far.
pub(crate) const HEAD_OFFSET: usize = WORD_STRIDE_BYTES;
/// Offset of the word on which the worker sleeps.
pub(crate) const WORKER_ASLEEP_OFFSET: usize = 2 * WORD_STRIDE_BYTES;
/// Offset of the word that tells whether the worker runs barriers.
pub(crate) const WORKER_BARRIERS_OFFSET: usize = WORKER_ASLEEP_OFFSET + 4;
/// Offset of the word on which the program sleeps.
pub(crate) const PROGRAM_ASLEEP_OFFSET: usize = 3 * WORD_STRIDE_BYTES;
/// Offset of the number of reclaim notices; a thread of the program sleeps on it.
pub(crate) const RECLAIM_NOTICES_OFFSET: usize = 4 * WORD_STRIDE_BYTES;
/// Offset of the ring of frames.
pub(crate) const RING_OFFSET: usize = PAGE_BYTES;
/// Bytes of the ring.
pub(crate) const RING_BYTES: usize = 4 << 20;
/// Bytes of the ring that a program uses while it is at most a thousand launches ahead of its worker.
pub(crate) const RING_WINDOW_BYTES: usize = 128 << 10;
/// Offset of the busy words of the staging pieces.
pub(crate) const BUSY_WORDS_OFFSET: usize = RING_OFFSET + RING_BYTES;
/// Distance between busy words.
pub(crate) const BUSY_STRIDE_BYTES: usize = CACHE_LINE_BYTES;
/// Offset of the reply slots.
pub(crate) const REPLY_SLOTS_OFFSET: usize = BUSY_WORDS_OFFSET + PAGE_BYTES;
/// Number of reply slots: threads of the program that may use the link at once.
pub(crate) const MAX_LINK_THREADS: usize = 1024;
/// Offset within a slot of the word that tells whether the thread sleeps.
pub(crate) const REPLY_SLEEPER_OFFSET: usize = 4;
/// Offset of the frame within a slot.
pub(crate) const REPLY_FRAME_OFFSET: usize = 8;
/// Bytes of a slot.
pub(crate) const REPLY_SLOT_BYTES: usize = (REPLY_FRAME_OFFSET + MAX_REPLY_BYTES).next_multiple_of(PAGE_BYTES);
/// Bytes of the whole channel.
pub(crate) const CHANNEL_BYTES: usize = REPLY_SLOTS_OFFSET + MAX_LINK_THREADS * REPLY_SLOT_BYTES;

/// Bytes of a staging piece.
pub const STAGING_PIECE_BYTES: usize = 4 << 20;
/// Number of staging pieces of a link.
pub const STAGING_PIECES: usize = 16;

/// Offset of the zero-copy area, behind all pieces.
pub(crate) const ZERO_COPY_OFFSET: usize = STAGING_PIECES * STAGING_PIECE_BYTES;
/// Bytes of the zero-copy area. It takes no memory beyond its contents.
pub(crate) const ZERO_COPY_BYTES: usize = 64 << 30;
/// Bytes of all pieces and the zero-copy area.
pub(crate) const STAGING_BYTES: usize = ZERO_COPY_OFFSET + ZERO_COPY_BYTES;

/// Requested address of the channel, far from where the system would put it. The free addresses there decide where a driver puts
/// its mappings, which a restored worker has to find again (`worker/src/os/layout.rs`).
pub(crate) const CHANNEL_ADDRESS: usize = 0x4c00_0000_0000;
/// Requested address of the staging pieces and the zero-copy area, behind the channel.
pub(crate) const PIECES_ADDRESS: usize = CHANNEL_ADDRESS + (1 << 32);
/// Requested address of a stream link's buffers, behind the pieces.
pub(crate) const BULK_ADDRESS: usize = CHANNEL_ADDRESS + (1 << 40);

const _: () =
    assert!(CHANNEL_ADDRESS + CHANNEL_BYTES <= PIECES_ADDRESS && PIECES_ADDRESS + STAGING_BYTES <= BULK_ADDRESS);

/// Initial bytes of the pinned memory. It grows as the program pins memory: CRIU reads every page of a memory file, holes too,
/// and `mlockall` fills all of them.
pub(crate) const INITIAL_PINNED_BYTES: u64 = 16 << 20;

//! The common code of sessions of every API: execution of frames and replies, rest and checkpoints, and the journal's frames
//! in an image and in a replay.
//!
//! ```text
//!             ┌ Checkpointable, Restorable    control.rs          coming to rest, orders of a companion
//! worker ─────┤
//!             └ execute_frames                calls/main_loop.rs  link ─▶ FrameHandler::dispatch ─▶ Api::refuse
//!                                                                    │
//!     MainLoop<A, T>  ◀── a session has one ─────────────────────────┤
//!       BusyPoll<A, T>                        calls/busy_poll.rs     ├─ a call that waits for a WaitTarget: polled
//!       Executors<A>                          calls/executor.rs      └─ or run by the executor of its thread
//!       Orders                                control.rs
//!
//!     Replies, Calls, Usage, UpcallQueue      calls/              what all threads of a session share
//!     JournalRecord, StateFormat, replay      journal/            frames as bytes, and executed again (Replayed)
//! ```
//!
//! | trait | what an API defines by it |
//! |---|---|
//! | [`Api`] | its codes, its context, the state that its threads share, its messages |
//! | [`FrameHandler`] | how its sessions execute a frame, and what is to be discarded when one is refused |
//! | [`WaitTarget`] | how its driver is asked whether a wait is over |
//! | [`Fault`] | which of its faults are codes for the program, and which end the session |
//! | [`ReplayTarget`] | which messages a journal holds, and where handlers store a frame's status |
//! | [`Checkpointable`], [`Restorable`] | what is in flight, how a session is saved and rebuilt: the only ones that a worker
//! calls, by `dyn` |
//!
//! Nothing here knows an object, a message or a code of any API. Everything that a frame passes is generic over [`Api`] and
//! compiled separately for each API, so that a frame costs no more indirect calls than in a crate of its own.
//!
//! Each API has its own enum of faults, because `?` in a handler converts a driver's code into it, and Rust only lets the
//! crate of the enum define that.

mod calls;
mod chunks;
mod control;
mod gpu_memory;
mod journal;
mod output;
mod progress;
mod snapshot;
mod streams;
mod uploads;
mod window;

pub use calls::api::Api;
pub use calls::busy_poll::{BusyPoll, PendingWait, WaitStatus, WaitTarget};
pub use calls::error::{Fault, SessionError, expect_reply};
pub use calls::executor::{Executors, Task, next, processors, run_apart, start_thread};
pub use calls::in_flight::Calls;
pub use calls::main_loop::{FrameHandler, LoopEnd, MainLoop, check_calls, execute, execute_frames, execute_orders};
pub use calls::replies::Replies;
pub use calls::upcalls::{UpcallQueue, UpcallState};
pub use calls::usage::Usage;
pub use chunks::{CHUNK_BYTES, ChunkError, Load, put_each, read_all};
pub use control::{Checkpointable, Control, FramePump, Orders, PumpOutcome, QuiesceError, Restorable};
pub use gpu_memory::{GpuMemory, GpuPieces, PiecePart, Texels};
pub use journal::format::{
    SavedProgress, StateFormat, UnfinishedUploads, put_all, put_uploads, read_unread_answers, take_all, take_uploads,
    upcall_head, write_unread_answers,
};
pub use journal::frame::JournalFrame;
pub use journal::record::{JournalRecord, MessageTable, Messages, ReplayStep, StateError};
pub use journal::replay::{ReplayError, ReplayTarget, execute_quietly, replay, replaying};
pub use output::{Capture, PrintedText};
pub use progress::Progress;
pub use snapshot::{
    AddressMismatch, CaptureOptions, FRAMES_NOTE, Failure, OutOfMemory, PendingSnapshot, Precopy, RestoreOptions,
    read_journal, write_journal,
};
pub use uploads::{MAX_MODULE_IMAGE_BYTES, UploadError, Uploads};

//! What keeping a session is, whatever API it speaks: coming to rest, orders for its main loop, frames of a journal and
//! their bytes; and what sessions of every API have: data in pieces, text that devices print.
//!
//! ```text
//! worker ── Control ── orders ──▶ main loop ── Orders::obey ──▶ dyn Kept ─┬─ session of CUDA
//!                                                                         └─ session of OpenCL
//! ```
//!
//! The rule: nothing here knows an object, a message or a code of any API. A worker speaks to a session through [`Checkpointable`]
//! and [`Restorable`] alone.

mod calls;
mod chunks;
mod control;
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
pub use calls::upcalls::{DueUpcalls, UpcallQueue};
pub use calls::usage::Usage;
pub use chunks::{CHUNK_BYTES, ChunkError, Load, put_each, read_all};
pub use control::{Checkpointable, Control, FramePump, Orders, Pumped, QuiesceError, Restorable};
pub use journal::format::{
    SavedProgress, StateFormat, Unfinished, put_all, put_kept, put_uploads, take_all, take_kept, take_uploads,
    upcall_head,
};
pub use journal::frame::Frame;
pub use journal::record::{MessageTable, Messages, Record, StateError, Step};
pub use journal::replay::{ReplayError, Replayed, execute_quietly, replay, replaying};
pub use output::{Capture, Printed};
pub use progress::Progress;
pub use snapshot::{AddressMismatch, CaptureOptions, Failure, OutOfMemory, PendingSnapshot, Precopy, RestoreOptions};
pub use uploads::{MAX_IMAGE_BYTES, UploadError, Uploads};

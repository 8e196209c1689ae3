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
mod frame;
mod output;
mod progress;
mod record;
mod snapshot;
mod streams;
mod uploads;
mod window;

pub use calls::Calls;
pub use chunks::{CHUNK_BYTES, ChunkError, Load, put_each, read_all};
pub use control::{Checkpointable, Control, FramePump, Orders, Pumped, QuiesceError, Restorable};
pub use frame::Frame;
pub use output::{Capture, Printed};
pub use progress::Progress;
pub use record::{MessageTable, Messages, Record, StateError, Step};
pub use snapshot::{AddressMismatch, CaptureOptions, Failure, OutOfMemory, PendingSnapshot, Precopy, RestoreOptions};
pub use uploads::{MAX_IMAGE_BYTES, UploadError, Uploads};

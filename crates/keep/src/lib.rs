//! What keeping a session is, whatever API it speaks: coming to rest, orders for its main loop, frames of a journal and
//! their bytes; and what sessions of every API have: data in pieces, text that devices print.
//!
//! ```text
//! worker ── Control ── orders ──▶ main loop ── Orders::obey ──▶ dyn Kept ─┬─ session of CUDA
//!                                                                         └─ session of OpenCL
//! ```
//!
//! The rule: nothing here knows an object, a message or a code of any API. A worker speaks to a session through [`Kept`]
//! and [`Restored`] alone.

mod calls;
mod chunks;
mod control;
mod frame;
mod kept;
mod output;
mod progress;
mod record;
mod streams;
mod uploads;
mod window;

pub use calls::Calls;
pub use chunks::{CHUNK, ChunkError, Load, put_each, read_all};
pub use control::{Control, Orders, Pump, Pumped, RestError};
pub use frame::Frame;
pub use kept::{Ahead, CaptureOptions, Elsewhere, Failure, Kept, NoRoom, RestoreOptions, Restored, Taken};
pub use output::{Capture, Printed};
pub use progress::Progress;
pub use record::{Messages, Names, Record, StateError, Step};
pub use uploads::{MAX_IMAGE, UploadError, Uploads};

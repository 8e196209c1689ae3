//! The journal: for every live object, the frame that made it and the last frame that set each of its properties.
//!
//! A restore replays these frames in their order through the dispatch that executed them (`rebuild.rs`), so objects come back
//! under the ids that the program knows. The journal's size follows the number of live objects. It copies nothing that memory
//! holds: initial contents of buffers are left out, because contents are saved. Events have no entry: `save.rs` asks the driver
//! for what remains of them at rest, their state and times.
//!
//! | kept for | what |
//! |---|---|
//! | every object | the frame that made it, and data that came in pieces before it |
//! | programs | builds that had an effect, the last of each list of devices; what went into them and may be gone or different since |
//! | kernels | the last value of each argument; the largest groups that were launched, by queue |
//! | clones of kernels | what the source was then, as if they had been made and set themselves |

mod notes;
mod rebuild;
mod rehearsal;
mod replay;
mod save;
mod state;

pub(crate) use notes::{Journal, ObjectEntry};
pub(crate) use rebuild::RebuildError;
pub(crate) use rehearsal::Rehearsal;
pub(crate) use replay::Replay;
pub(crate) use save::{devices_of, times};
pub(crate) use state::{Device, JournalState, PendingRead, Platform, SvmMapping};

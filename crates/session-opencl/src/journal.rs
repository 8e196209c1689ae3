//! The journal: for every live object the frame that made it, and the last frame that set each of its properties.
//!
//! A restore replays these frames in their order through the dispatch that executed them (`rebuild.rs`), so that objects
//! come back under the ids that the program knows. The size follows what is alive. Nothing is copied that memory holds:
//! what a buffer began with is left out, because its contents are saved. Events have no entry: what is left of them at
//! rest, their state and times, the driver is asked (`save.rs`).
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

//! The journal: for every live object, the frame that made it, and the last frame that set each of its properties.
//!
//! A restore replays these frames, in the order of their numbers, through the same dispatch that executed them. Ids are the
//! program's, so objects come back under the ids that it knows. The size depends on live objects, not on history: an entry
//! goes with its object. Nothing here hashes, asks the driver or copies an image while the program runs. Programs make and
//! end millions of events and streams, so these are a few words each in vectors by id ([`compact`]).
//!
//! | kept for | what |
//! |---|---|
//! | every object | the frame that made it, with the context that it belongs to |
//! | modules, libraries | the image, shared where two are the same |
//! | executable graphs | the description they were built from |
//! | variables, textures, surfaces, conditional handles, functions | the answer that the program received, to be compared |
//! | what ended while younger code lives on | a tombstone ([`tombstones`]), so that the driver places that code as before |
//! | executable graphs that a restore made later than the program | a sketch: what takes their room at their first place |
//!
//! `docs/reference/checkpoint-state.md` lists where each part of a session's state is kept.

mod compact;
mod entries;
mod entry;
mod error;
mod event_clock;
mod event_times;
mod graphs;
mod library_use;
mod memory_wait;
mod notes;
mod numbers;
mod overhead_bench;
mod rebuild;
mod rehearsal;
mod replay;
mod save;
mod state;
mod stream_highwater;
mod stream_replay;
mod tombstones;

pub(crate) use entries::Journal;
pub(crate) use entry::{ObjectKind, Selector, Steps, TakenUpload, either, only, span};
pub use error::{JournalError, RebuildError};
pub(crate) use event_times::EventTimes;
pub(crate) use graphs::needs;
pub use overhead_bench::BenchedCall;
pub(crate) use replay::Replay;
pub use save::SavedState;
#[cfg(test)]
pub(crate) use state::read_state;
pub(crate) use state::records_of;
pub use state::{SessionRequirements, messages_of};

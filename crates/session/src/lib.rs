//! One program's state in the worker, and the execution of its messages with a driver.
//!
//! ```text
//! frame ── Session::serve ── dispatch (generated) ─┬─ the driver's function
//!                                                  └─ handlers (kd… messages) ─┬─ main loop
//!                                                                              └─ executor of the thread
//! ```
//!
//! Rules kept in this crate: the main loop never waits for the GPU; all data from the program is bounded and checked before
//! it is used; a code goes back to the program, a breach of the protocol ends the session ([`SessionError`]); nothing
//! panics.

mod calls;
mod code;
mod device;
mod graphs;
mod handlers;
mod journal;
mod memory;
mod objects;
mod session;
mod snapshot;
mod state;
#[cfg(test)]
mod tests;
mod transfer;

pub use calls::fault::SessionError;
pub use code::module_cache::ModuleCache;
pub use device::gather;
pub use journal::{BenchedCall, JournalError, RebuildError, SavedState, SessionRequirements, messages_of};
pub use memory::device_memory;
pub use memory::host_memory::HostMemory;
pub use memory::reclaim::{Reclaim, ReclaimPeers, ReclaimRequest};
pub use session::Setup;
pub use snapshot::{CopyContext, SnapshotError, journal_of};
pub use state::{Session, WarmContext};

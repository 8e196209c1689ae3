//! One program's state in the worker: what its messages mean to a driver.
//!
//! ```text
//! frame ── Session::serve ── dispatch (generated) ─┬─ the driver's function
//!                                                  └─ handlers (kd… messages) ─┬─ main loop
//!                                                                              └─ executor of the thread
//! ```
//!
//! Rules kept in this crate: the main loop never waits for the GPU; everything the program sends is bounded and
//! checked before it is used; a code goes back to the program, a breach of protocol ends the session
//! ([`SessionError`]); nothing panics.

mod arrays;
mod ask;
mod bulk;
mod chunks;
mod context;
pub mod device_memory;
mod dispatch;
mod executor;
mod fault;
pub mod gather;
mod graphs;
mod handlers;
mod handles;
mod holdings;
mod host_memory;
mod images;
mod journal;
mod large_pages;
mod looking;
mod own_pages;
mod reach;
mod references;
mod relay;
mod rest;
mod session;
mod shared;
mod shares;
mod shortage;
mod snapshot;
mod spare;
mod staged;
mod stand_in;
mod store;
mod tables;
#[cfg(test)]
mod tests;
mod upcalls;
mod usage;
mod virtual_memory;

pub use fault::SessionError;
pub use host_memory::HostMemory;
pub use journal::{JournalError, Noted, Opening, RebuildError, Saved, messages_of};
pub use session::{Session, Setup, WarmContext};
pub use shortage::{Neighbours, Plea, Shortage};
pub use snapshot::{Carrier, SnapshotError, journal_of};
pub use store::ImageStore;
pub use usage::Usage;

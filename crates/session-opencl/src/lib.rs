//! One OpenCL program's state in the worker: what its messages mean to the OpenCL drivers of this machine.
//!
//! ```text
//! frame ── Session::serve ── dispatch (generated) ── handlers ─┬─ main loop
//!                                                              └─ executor of the program's thread (what may wait)
//! ```
//!
//! Rules kept in this crate: the main loop never waits for a device; everything the program sends is bounded and
//! checked before it is used; a code goes back to the program, a breach of protocol ends the session
//! ([`SessionError`]); nothing panics. Every message but `kdclInfo` and its like names its objects by ids that the
//! program's side chose, so the frames that made what is alive, run again, make it again under the same ids.

mod apart;
mod arguments;
mod contents;
mod data;
mod devices;
mod dispatch;
pub mod driver;
mod executor;
mod fault;
mod find;
mod handlers;
mod host;
mod journal;
mod landing;
mod lifetimes;
mod looking;
mod lookout;
mod notify;
mod objects;
mod pinned;
mod placing;
mod rest;
mod session;
mod shared;
mod shelf;
mod snapshot;
mod staged;
mod svm;
#[cfg(test)]
mod tests;
mod upcalls;
mod usage;

pub use fault::SessionError;
pub use host::HostMemory;
pub use session::Session;
pub use snapshot::{QUOTA, examine, host_base, is_kept_in, is_outline};
pub use usage::Usage;

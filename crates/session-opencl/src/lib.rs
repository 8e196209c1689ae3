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

mod calls;
mod contents;
mod drivers;
mod handlers;
mod journal;
mod memory;
mod objects;
mod session;
mod snapshot;
mod state;
#[cfg(test)]
mod tests;

pub use calls::fault::SessionError;
pub use drivers::driver;
pub use memory::host::HostMemory;
pub use snapshot::{MEMORY_LIMIT_NOTE, host_base, is_kept_in, is_outline, parse_state};
pub use state::Session;

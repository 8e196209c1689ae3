//! State of one OpenCL program in the worker: executes its messages with the OpenCL drivers of this machine.
//!
//! ```text
//! frame ── Session::serve ── dispatch (generated) ── handlers ─┬─ main loop
//!                                                              └─ executor of the program's thread (what may wait)
//! ```
//!
//! Rules of this crate: the main loop never waits for a device. Everything that the program sends is bounded and checked before
//! use. An error of the driver returns to the program as its code; a breach of protocol ends the session ([`SessionError`]).
//! Nothing panics. Every message except `kdclInfo` and its like names its objects by ids that the shim chose. So replaying the
//! frames of live objects makes them again under the same ids.

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

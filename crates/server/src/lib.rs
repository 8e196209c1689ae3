//! The server: accepts programs, gives each a worker process, and keeps the table of sessions.
//!
//! ```text
//! program ── hello ──▶ hello queue ──▶ accept ──▶ sessions (admission) ──▶ pool (a warm worker) ──▶ hand-over
//!                                                                            ▲
//!                                                  spawn ──▶ supervisor (reads what the worker says, reaps it)
//! ```
//!
//! After the hand-over, program and worker talk only to each other; the server only notices when the worker ends. It keeps no
//! state that a restart cannot rebuild, and trusts neither programs nor workers: it bounds their texts and makes them printable.

mod accept;
mod admin;
mod control;
mod descriptors;
pub mod fuzz_entry;
mod hello_queue;
mod keepers;
mod listen;
mod nvml_processes;
mod nvml_service;
mod pool;
mod reclaim_credit;
mod reclaim_requests;
mod report;
mod server;
mod sessions;
mod shared;
mod slots;
mod view;
mod workers;

pub use descriptors::raise_descriptors;
pub use listen::ListenError;
pub use report::Verbosity;
pub use server::{Server, ServerConfig, StartError};
pub use view::{ReservedView, ServerView, SessionView, SessionsView, WorkersView};
pub use workers::spawn::WorkerCommand;
pub use workers::users::{OWN_USERS, OwnUsers, RunsAs, WorkerUser};

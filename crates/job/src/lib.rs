//! A job: a program, its children, and their GPU sides, checkpointed and restored as one.
//!
//! The supervisor is `katydid run` (or `katydid restore`), which has started the program below a guard; or, of ranks of MPI
//! that each begin by `katydid run`, a process that the first of them started (`ranks.rs`):
//!
//! ```text
//! katydid checkpoint ──HTTP/JSON──▶ control ──▶ checkpoint ──▶ members    (job socket: hold, leave, resume)
//!                                                         ──▶ companions (workers: pause, snapshot)
//!                                                         ──▶ criu       (the processes themselves)
//! ```
//!
//! The rule of this crate: a checkpoint that fails at any point is undone, and the program goes on as if it had never
//! been asked for.

mod attributes;
pub mod checkpoint;
pub mod companion;
mod control;
pub mod criu;
mod failover;
pub mod files;
pub mod folder;
mod frozen;
mod growth;
pub mod guard;
pub mod incarnations;
pub mod inherited;
pub mod job;
mod kernel_data;
mod libraries;
mod links;
mod loans;
mod losses;
pub mod members;
mod migrate;
pub mod namespace;
mod noted;
mod notes;
pub mod obstacles;
mod parked;
mod patience;
mod pointers;
mod proof;
mod protobuf;
mod question;
mod queues;
pub mod ranks;
pub mod registry;
mod rehearsal;
pub mod restore;
mod restore_images;
mod rights;
pub mod rings;
mod servant;
mod session;
pub mod shared;
mod signals;
mod silence;
mod stages;
pub mod stdio;
mod stop;
pub mod stopped;
mod tcp;
mod terminals;
pub mod tree;
pub mod turns;
mod unknown;
mod unrestored;
pub mod view;

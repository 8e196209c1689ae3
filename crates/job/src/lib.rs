//! A job: a program, its children, and their GPU sides, checkpointed and restored as one.
//!
//! The supervisor is `katydid run` (or `katydid restore`), which has started the program below a guard. For MPI ranks that each
//! begin by `katydid run`, it is a process that the first of them started (`supervisor/ranks.rs`):
//!
//! ```text
//! katydid checkpoint ──HTTP/JSON──▶ control ──▶ checkpoint ──▶ members    (job socket: hold, leave, resume)
//!                                                         ──▶ companions (workers: pause, snapshot)
//!                                                         ──▶ criu       (the processes themselves)
//! ```
//!
//! The rule of this crate: a checkpoint that fails at any point is undone, and the program goes on as if it had never
//! been asked for.

pub mod checkpoint;
pub mod criu;
pub mod keeper;
pub mod process;
pub mod supervisor;
mod sync;
mod system;

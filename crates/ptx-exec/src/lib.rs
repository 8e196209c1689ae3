//! Runs decoded PTX 32 lanes at a time.
//!
//! A [`Program`] is one or more PTX texts, linked and decoded. [`run`] runs one of its [`Kernel`]s over a [`Launch`]. The rule of
//! the crate: device code can do anything, and the worst result is a [`Fault`]. Every address is checked against the ranges of
//! the [`Host`] before memory is accessed. An unimplemented instruction is refused when the program is loaded, never skipped.
//!
//! Device addresses are addresses of this process. Shared and local memory, kernel parameters and functions have windows
//! above the addresses that a process can have (see [`window`]).
//!
//! Modules use each other downwards only:
//!
//! | modules | what |
//! |---|---|
//! | `load`, `state` | loading a program, and the state of a grid as bytes |
//! | `decode` | from the syntax tree to code, a module for each family of instructions |
//! | `engine`: `scheduler`, `rounds`, `race_watch`, `grid`, `pool` | what runs when, and on which interpreter thread |
//! | `alu`, `matrix`, `memory`, `texture`, `tensor`, `control`, `device_runtime`, `print` | instructions, a module for each family |
//! | `api` | programs, kernels and launches as callers see them |
//! | `engine::machine` | the machine, with the instructions, program and launch that it runs |
//! | `engine`: `block`, `warp`, `registers`, `races`, `order`, `fault`, `switch` | the state of blocks, warps and lanes |
//! | `code`, `host`, `slot`, `types`, `window` | data that the others share |

mod alu;
mod api;
mod code;
mod control;
mod decode;
mod device_runtime;
mod engine;
mod host;
mod load;
mod matrix;
mod memory;
mod print;
mod slot;
mod state;
mod tensor;
pub mod texture;
mod types;
pub mod window;

pub use api::{GlobalMemory, Kernel, Launch, LoadError, Progress, RunLimits, TargetDevice};
pub use code::{KernelInfo, Param};
pub use control::special::RESERVED_SHARED_BYTES;
pub use engine::fault::{Fault, FaultKind};
pub use engine::grid::{Grid, MAX_BLOCK_SHARED_BYTES, MAX_BLOCK_THREADS, run};
pub use engine::order::MAX_CLUSTER_BLOCKS;
pub use engine::pool::prepare_threads;
pub use engine::races::{Race, RaceSide};
pub use engine::switch::{Request, Switch};
pub use host::{AddressRange, DeviceHeap, Host, Question};
pub use load::accept::strong_names;
pub use load::program::{Program, PtxSource, ReferenceKind};
pub use load::register_limit::MULTIPROCESSOR_THREADS;
pub use state::StateError;

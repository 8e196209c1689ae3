//! Runs decoded PTX 32 lanes at a time.
//!
//! A [`Program`] is one or more PTX texts, linked and decoded; a [`Kernel`] of it is run by [`run`] over a [`Launch`].
//! The rule of the crate: device code can do whatever it likes, and the worst that happens is a [`Fault`]. Every
//! address is checked against the ranges that the [`Host`] knows before memory is touched, and an instruction that
//! is not implemented is refused when the program is loaded, never skipped.
//!
//! Device addresses are addresses of this process. Shared and local memory, kernel parameters and functions have windows
//! above the addresses that a process can have (see [`window`]).
//!
//! | module | what |
//! |---|---|
//! | `accept`, `link`, `globals`, `decode`, `register_limit`, `program` | texts to code |
//! | `inst`, `code`, `registers` | what code is, and where its operands are |
//! | `alu`, `memory`, `atom`, `async_copy`, `tensor`, `tensor_copy`, `multimem`, `mbarrier`, `cluster`, `collective`, `barrier`, `control`, `special`, `builtin`, `heap`, `device_runtime`, `print` | instructions |
//! | `machine`, `warp`, `block`, `grid`, `pool` | what runs when, and on which thread |
//! | `races` | which threads touch the same memory with nothing that orders them |
//! | `switch`, `state` | pausing, ending, and the running state as bytes |

mod alu;
mod api;
mod code;
mod decode;
mod device_runtime;
mod engine;
mod inst;
mod load;
mod matrix;
mod memory;
mod print;
mod state;
mod tensor;
pub mod texture;
mod types;
pub mod window;

pub use api::{
    AddressRange, GlobalMemory, Host, Kernel, KernelInfo, Launch, Limits, LoadError, Param, Pool, Progress, Question,
    Target,
};
pub use engine::cluster::MAX_CLUSTER;
pub use engine::fault::{Fault, FaultKind};
pub use engine::grid::{Grid, run};
pub use engine::pool::prepare_threads;
pub use engine::races::{Race, RaceSide};
pub use engine::switch::{Request, Switch};
pub use load::accept::strong_names;
pub use load::program::{Program, ReferenceKind, Source};
pub use state::StateError;

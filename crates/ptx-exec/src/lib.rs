//! Runs decoded PTX 32 lanes at a time.
//!
//! A [`Program`] is one or more PTX texts, linked and decoded; a [`Kernel`] of it is run by [`run`] over a [`Launch`].
//! The rule of the crate: device code can do whatever it likes, and the worst that happens is a [`Fault`]. Every
//! address is checked against the ranges that the [`Host`] knows before memory is touched, and an instruction that
//! is not implemented is refused when the program is loaded, never skipped.
//!
//! Device addresses are addresses of this process. Shared and local memory, kernel parameters and functions have windows
//! above the addresses that a process can have (see [`window`]).

mod api;
mod fault;
pub mod window;

pub use api::{
    AddressRange, GlobalMemory, Grid, Host, Kernel, Launch, Limits, LoadError, Param, Program, Progress, Target, run,
};
pub use fault::{Fault, FaultKind};

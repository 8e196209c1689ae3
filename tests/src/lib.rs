//! Tests of the whole system: real CUDA programs on every way through Katydid, and failures of its parts.
//!
//! The tests in `tests/`, `cargo xtask` and the run on a GPU machine share this library. It knows the programs, their locations,
//! and what each must print. It runs programs as long as they make progress, and starts and stops servers. It uses only the
//! installed binaries, as a user would; it links no crate of Katydid.

pub mod cargo;
pub mod catalog;
pub mod certs;
pub mod commands;
pub mod deadline;
pub mod frameworks;
pub mod gate;
pub mod job;
pub mod measured;
pub mod opencl;
pub mod paths;
pub mod program;
pub mod script;
pub mod server;
pub mod traffic;
pub mod trial;
pub mod verdict;
pub mod watch;
pub mod way;

//! The whole system under test: real CUDA programs on every way through Katydid, and what happens when parts of it die.
//!
//! This library is what the tests in `tests/`, `cargo xtask` and the run on a GPU machine share: which programs there
//! are, where things lie, how a program is run within a time limit, how a server is started and ended, and what a
//! program must have printed. It uses the installed binaries only, as a user would; no crate of Katydid is linked.

pub mod catalog;
pub mod certs;
pub mod commands;
pub mod deadline;
pub mod frameworks;
pub mod gate;
pub mod job;
pub mod measured;
pub mod opencl;
pub mod places;
pub mod program;
pub mod script;
pub mod server;
pub mod traffic;
pub mod trial;
pub mod verdict;
pub mod watch;
pub mod way;

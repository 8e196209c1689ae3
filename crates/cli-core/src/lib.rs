//! Code that all commands of `katydid` share: input and output of users, paths of the libraries, servers.
//!
//! Errors and output are at the bottom, servers at the top. Commands are in the crates `cli` and `bench`.

pub mod args;
pub mod child;
pub mod layout;
pub mod opencl;
pub mod output;
pub mod probe;
pub mod server;

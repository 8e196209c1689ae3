//! The OpenCL library of programs under Katydid: a driver for ICD loaders, whose devices are a server's.
//!
//! ```text
//! program ── loader ── ffi (generated entries) ── commands, objects ── transfers, host ── process (session) ── worker
//! ```
//!
//! Rules of this crate:
//!
//! - An object is a record whose address is its handle. So a handle from a program is recognized before anything is read through
//!   it.
//! - An object keeps alive the objects that it is made of. Dropping its last reference ends it on both sides.
//! - A driver accepts again what it has accepted once (an argument's size, a launch's shape). So a repeated call waits for no
//!   reply.
//! - Data of the program moves inside the calls that OpenCL allows to wait for it.

mod commands;
mod ffi;
mod host;
mod objects;
mod process;
mod transfers;

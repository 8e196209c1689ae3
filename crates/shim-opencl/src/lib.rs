//! The OpenCL library of programs under Katydid: a driver for ICD loaders, whose devices are a server's.
//!
//! ```text
//! program ── loader ── ffi (generated entries) ── commands, objects ── transfers, host ── process (session) ── worker
//! ```
//!
//! Rules of this crate:
//!
//! - An object is a record whose address is its handle. So a handle that a program passes is recognised before anything is
//!   read through it.
//! - What an object is made of stays alive with it. Its last reference ends it on both sides.
//! - What a driver has accepted once (an argument's size, a launch's shape) is accepted again, so repeating it waits for no
//!   thread.
//! - Data of the program moves inside the calls that OpenCL makes wait for it.

mod commands;
mod ffi;
mod host;
mod objects;
mod process;
mod transfers;

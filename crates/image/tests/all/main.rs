//! External tests of the crate, in one program: linking one is faster than linking each.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test stops at the first surprise")]

mod checkpoints;
mod clearing;
#[path = "../common/mod.rs"]
mod common;
mod damage;
mod earlier_formats;
mod faults;

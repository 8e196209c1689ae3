//! Tests of the crate from outside, in one program, which links faster than one program for each.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test stops at the first surprise")]

mod common;
mod interrupts;
mod mistakes;
mod run;
mod serve;

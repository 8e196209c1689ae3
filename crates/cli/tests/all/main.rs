//! Tests of the crate from outside, in one program: linking one costs less than linking each.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test stops at the first surprise")]

mod common;
mod interrupts;
mod mistakes;
mod run;
mod serve;

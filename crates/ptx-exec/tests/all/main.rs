//! Tests of the crate from outside, in one program: linking one costs less than linking each.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test stops at the first surprise")]

mod arithmetic;
mod async_copy;
mod cluster;
#[path = "../common/mod.rs"]
mod common;
mod contraction;
mod control;
mod device_runtime;
mod floats;
mod heap;
mod memory;
mod multimem;
mod mutations;
mod pixels;
mod programs;
mod races;
mod seldom_written;
mod state;
mod tensor;
mod waiting_blocks;
mod warp_wide;

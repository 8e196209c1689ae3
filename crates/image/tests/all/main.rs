//! Tests of the crate from outside, in one program: linking one costs less than linking each.

mod checkpoints;
mod clearing;
#[path = "../common/mod.rs"]
mod common;
mod damage;
mod faults;
mod kept;

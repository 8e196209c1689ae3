//! Tests of the crate from outside, in one program: linking one costs less than linking each.

mod damage;
mod expressions;
mod golden;

//! External tests of the crate, in one program: linking one is faster than linking each.

mod common;
mod containers;
mod damage;
mod pointers;

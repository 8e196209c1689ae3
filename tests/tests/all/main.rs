//! Tests that disturb no other test: in one program, since linking one costs less than linking each.
//!
//! Each test that counts descriptors, memory or replies, that breaks links or kills processes, or that has no harness, stays
//! in a program of its own.

mod answers;
mod command_line;
mod control_lines;
mod cudart;
mod devices;
mod hot_calls;
mod usage;
mod users;

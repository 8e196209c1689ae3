//! Tests that disturb no other test, linked as one program, which costs less than linking each.
//!
//! A test stays in a program of its own if it counts descriptors, memory or replies, breaks links, kills processes,
//! or has no harness.

mod answers;
mod command_line;
mod control_lines;
mod cudart;
mod devices;
mod hot_calls;
mod usage;
mod users;

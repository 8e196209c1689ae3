//! The `libnvidia-ml.so.1` of programs under Katydid: it tells of the devices of their server.
//!
//! A program's GPU is wherever its server is. The NVML of the machine that the program runs on, if it has one, would tell
//! of other GPUs, and keep devices open that no checkpoint can keep. So this library stands before it in the search path,
//! and asks the server (`link`). Functions that only ask are passed on (`call`, `export`), waits for events run out (`events`); those that change a device, and
//! those that are not known here, say their name once and are not supported.

#![allow(unreachable_pub, reason = "exported symbols are public to C")]

mod call;
mod error;
mod events;
mod export;
mod link;
mod refused;
mod table;

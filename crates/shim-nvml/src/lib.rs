//! The `libnvidia-ml.so.1` of programs under Katydid: it answers for the devices of their server.
//!
//! A program's GPU is on its server. The NVML of the program's machine, if it has one, would answer for other GPUs, and keep
//! devices open that no checkpoint can save. So this library comes before it in the search path, and asks the server
//! (`link`). Queries are passed on (`call`, `export`), and waits for events time out (`events`). Functions that change a
//! device, and unknown ones, report their name once and are not supported.

#![allow(unreachable_pub, reason = "exported symbols are public to C")]

mod call;
mod error;
mod events;
mod export;
mod link;
mod refused;
mod table;

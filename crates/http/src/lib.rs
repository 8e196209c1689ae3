//! HTTP/1 with JSON on a unix socket, for the admin API of a server and the control socket of a job.
//!
//! The rule: a client costs a bounded amount of memory, a bounded number of descriptors and threads, and a bounded time, whatever
//! it sends or does not read. [`Limits`] has the numbers. A client's announcement never sizes a buffer.
//!
//! One thread runs all connections. Handlers run on threads of their own, so that a slow one holds up no connection.

mod answer;
mod body;
mod connection;
mod context;
pub mod fuzz_entry;
mod server;
mod timeout;

pub use answer::{Answer, Lines, Request};
pub use context::Limits;
pub use server::HttpServer;

//! Tests of the crate from outside, in one program: linking one costs less than linking each.

mod bad_links;
mod bulk_connections;
#[path = "../common/mod.rs"]
mod common;
mod handshake;
mod hold;
mod hostile;
mod mutations;
#[path = "../../../../fuzz/bodies/random.rs"]
mod random;
mod tls;

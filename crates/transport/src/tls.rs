//! TLS 1.3 with certificates on both sides, for links that leave the machine.
//!
//! rustls makes the handshake: it checks the other side's identity, and provides the secrets of the two directions. From then on
//! `record` encrypts and decrypts the records with those secrets, each direction by itself. So a thread that writes and one that
//! reads share nothing and never wait for each other. Data is decrypted where it was received. A server can hand a connection
//! over to a worker by passing the current secrets.
//!
//! The rules:
//!
//! - TLS 1.3 and nothing older, no resumption and no early data.
//! - A side without a certificate of the authority gets no further than the handshake.
//! - Both sides give the reason for whatever they refuse.
//! - A plaintext answer of a server may only be a refusal, and the program sends no data to that server.

#[cfg(test)]
mod beside_rustls;
pub(crate) mod fuzz_entry;
pub(crate) mod handshake;
pub(crate) mod identity;
pub(crate) mod record;

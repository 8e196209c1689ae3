//! TLS 1.3 with certificates on both sides, for links that leave the machine.
//!
//! rustls makes the handshake: it checks who the other side is, and gives the secrets of the two directions. From then on
//! `record` encrypts and decrypts the records with those secrets, each direction by itself. So a thread that writes and one
//! that reads share nothing and never wait for each other. Data is decrypted where it was received. A server can hand a
//! connection over to a worker as the secrets that are in use.
//!
//! The rules:
//!
//! - TLS 1.3 and nothing older, no resumption and no early data.
//! - A side without a certificate of the authority gets no further than the handshake.
//! - Both sides give the reason for whatever they refuse.
//! - What a server says in plaintext may be a refusal, and no data of a program goes to it.

#[cfg(test)]
mod beside_rustls;
pub(crate) mod fuzz_entry;
pub(crate) mod handshake;
pub(crate) mod identity;
pub(crate) mod record;

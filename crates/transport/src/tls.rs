//! TLS 1.3 with certificates on both sides, for links that leave the machine.
//!
//! rustls makes the handshake: who the other side is, and the secrets of the two directions. From then on the records are
//! sealed and opened here (`record`), with those secrets, each direction by itself: a thread that writes and one that
//! reads share nothing and wait for nothing of each other, data is opened where it was received, and a daemon can hand a
//! connection over to a worker as the secrets that are in use.
//!
//! The rules: TLS 1.3 and nothing older, no resumption and no early data; a side without a certificate of the authority
//! gets no further than the handshake; whatever is refused is refused with the reason, on both sides; what a server says in
//! the plain may be a refusal, and nothing of a program's goes to it.

#[cfg(test)]
mod beside_rustls;
pub(crate) mod examine;
pub(crate) mod handshake;
pub(crate) mod identity;
pub(crate) mod record;

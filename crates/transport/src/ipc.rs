//! Connections, and whole messages over them.

pub(crate) mod connection;
pub(crate) mod control_channel;
pub mod lender_sockets;
pub mod share;

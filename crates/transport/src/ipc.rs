//! Connections, and whole messages over them.

pub(crate) mod connection;
pub(crate) mod control_channel;
pub mod exporter_sockets;
pub mod share;

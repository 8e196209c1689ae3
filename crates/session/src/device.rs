//! What a driver says of its devices, asked once.

pub(crate) mod ask;
pub mod gather;

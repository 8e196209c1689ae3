//! The driver's facts about its devices, asked once.

pub(crate) mod ask;
pub mod gather;

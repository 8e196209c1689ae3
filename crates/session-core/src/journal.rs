//! The frames that a checkpoint saves: in memory, as bytes, and replayed.

pub(crate) mod format;
pub(crate) mod frame;
pub(crate) mod record;
pub(crate) mod replay;

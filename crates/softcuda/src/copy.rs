//! Copies and fills.

pub(crate) mod linear;
pub(crate) mod plane;
pub(crate) mod side;
pub(crate) mod transfer;

//! Functions on devices, contexts and the process.

mod current;
mod device;
mod green_ctx;
mod peer;
mod process_state;
mod start;

pub(crate) use current::*;
pub(crate) use device::*;
pub(crate) use green_ctx::*;
pub(crate) use peer::*;
pub(crate) use process_state::*;
pub(crate) use start::*;

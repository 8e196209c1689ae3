//! Functions on memory, copies and fills.

mod allocation;
mod batch;
mod copy;
mod fill;
mod host_memory;
mod managed;
mod mapping;
mod pointer;
mod pool;

pub(crate) use allocation::*;
pub(crate) use batch::*;
pub(crate) use copy::*;
pub(crate) use fill::*;
pub(crate) use host_memory::*;
pub(crate) use managed::*;
pub(crate) use mapping::*;
pub(crate) use pointer::*;
pub(crate) use pool::*;

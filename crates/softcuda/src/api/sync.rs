//! Functions on streams, events and graphs.

mod event;
mod graph;
mod host_function;
mod stream;
mod stream_attribute;

pub(crate) use event::*;
pub(crate) use graph::*;
pub(crate) use host_function::*;
pub(crate) use stream::*;
pub(crate) use stream_attribute::*;

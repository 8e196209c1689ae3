//! Streams and events.

pub(crate) mod event;
pub(crate) mod gpu_time;
pub(crate) mod stream;
pub(crate) mod stream_attribute;
pub(crate) mod stream_value;
pub(crate) mod wait;

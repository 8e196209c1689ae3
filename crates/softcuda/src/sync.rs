//! Streams, events, and the executor of queued work.

pub(crate) mod default_stream;
pub(crate) mod event;
pub(crate) mod executor;
pub(crate) mod hold;
pub(crate) mod job;
pub(crate) mod memory_word;
pub(crate) mod stream;
pub(crate) mod stream_attributes;
pub(crate) mod streams;
pub(crate) mod synchronize;
pub(crate) mod wait_value;

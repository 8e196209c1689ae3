//! Bytes between the link and the GPU: staged pieces, buffers of bulk replies.

pub(crate) mod bulk;
pub(crate) mod reply_pool;
pub(crate) mod staged;

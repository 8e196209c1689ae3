//! A session driven frame by frame against a driver that only records its calls.

mod bulk;
mod busy_poll;
mod contents;
mod fake;
mod graphs;
mod hostile;
mod journal;
mod launches;
mod memory;
mod memory_limit;
mod order;
mod packed;
mod rebuild;
pub(crate) mod soft;
mod stage;
mod waiting;

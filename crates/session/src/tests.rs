//! A session driven frame by frame against a driver that only remembers what it was asked.

mod bulk;
mod contents;
mod fake;
mod graphs;
mod hostile;
mod journal;
mod launches;
mod looking;
mod memory;
mod order;
mod packed;
mod quota;
mod rebuild;
pub(crate) mod soft;
mod stage;
mod waiting;

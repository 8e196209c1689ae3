//! A session driven frame by frame against a driver that only remembers what it was asked.

mod fake;
mod hostile;
mod launches;
mod memory;
mod order;
mod stage;
mod waiting;

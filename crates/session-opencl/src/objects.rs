//! Objects of drivers by the session's ids, and their lifetimes.

pub(crate) mod held_events;
pub(crate) mod lifetimes;
pub(crate) mod object;
pub(crate) mod table;

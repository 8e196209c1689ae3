//! Objects of drivers by the session's ids, and which must outlive which.

pub(crate) mod held_events;
pub(crate) mod lifetimes;
pub(crate) mod object;
pub(crate) mod table;

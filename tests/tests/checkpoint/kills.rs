//! Processes are killed, stopped or leave: workers, supervisors, CRIU, and programs whose sessions move.

pub(crate) mod chaos;
pub(crate) mod departures;
pub(crate) mod failover;
pub(crate) mod moves;
pub(crate) mod restores;

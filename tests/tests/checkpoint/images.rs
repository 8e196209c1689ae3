//! Images: where they are stored, damage, other builds, drivers and hosts, and workers in them.

pub(crate) mod damage;
pub(crate) mod elsewhere;
pub(crate) mod moved;
pub(crate) mod stores;
pub(crate) mod upgrades;
pub(crate) mod workers;

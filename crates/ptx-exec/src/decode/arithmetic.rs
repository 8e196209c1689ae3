//! Instructions that calculate, compare, convert and move.

pub(crate) mod compare;
pub(crate) mod contract;
pub(crate) mod conversion_rules;
pub(crate) mod convert;
pub(crate) mod float;
pub(crate) mod half;
pub(crate) mod integer;
pub(crate) mod logic;
pub(crate) mod moves;
pub(crate) mod small;
pub(crate) mod video;
pub(crate) mod wide;

//! Functions on modules, libraries, kernels and launches.

mod function;
mod launch;
mod legacy_launch;
mod library;
mod link;
mod module;
mod occupancy;

pub(crate) use function::*;
pub(crate) use launch::*;
pub(crate) use legacy_launch::*;
pub(crate) use library::*;
pub(crate) use link::*;
pub(crate) use module::*;
pub(crate) use occupancy::*;

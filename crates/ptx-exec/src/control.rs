//! Instructions for control flow, for waits, and for queries of the launch: branches, calls, barriers, special registers.

pub(crate) mod barrier;
pub(crate) mod builtin;
pub(crate) mod call_args;
pub(crate) mod cluster;
pub(crate) mod collective;
pub(crate) mod flow;
pub(crate) mod mbarrier;
pub(crate) mod special;
pub(crate) mod stack;

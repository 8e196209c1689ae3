//! Runs a grid: blocks, warps and lanes, their control flow, barriers and registers.

pub(crate) mod barrier;
pub(crate) mod block;
pub(crate) mod builtin;
pub(crate) mod cluster;
pub(crate) mod collective;
pub(crate) mod control;
pub(crate) mod fault;
pub(crate) mod grid;
pub(crate) mod machine;
pub(crate) mod mbarrier;
pub(crate) mod order;
pub(crate) mod pool;
pub(crate) mod races;
pub(crate) mod registers;
pub(crate) mod special;
pub(crate) mod stack;
pub(crate) mod switch;
pub(crate) mod warp;

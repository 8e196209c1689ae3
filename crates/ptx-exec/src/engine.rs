//! Runs a grid: the state of blocks, warps and lanes, the machine that runs them, and the scheduling.

pub(crate) mod block;
pub(crate) mod fault;
pub(crate) mod grid;
pub(crate) mod machine;
pub(crate) mod order;
pub(crate) mod pool;
pub(crate) mod race_watch;
pub(crate) mod races;
pub(crate) mod registers;
pub(crate) mod rounds;
pub(crate) mod scheduler;
pub(crate) mod switch;
pub(crate) mod warp;

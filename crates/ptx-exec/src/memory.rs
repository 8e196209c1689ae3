//! Memory as device code sees it: loads, stores and the checks before them.
//!
//! Every access is checked for alignment and against a known range before `raw` touches memory. If the addresses of all lanes lie
//! in one range, the checks are made once for all of them. Otherwise they are made lane by lane, so that a fault names its lane.
//!
//! | space | addresses | where it is |
//! |---|---|---|
//! | generic | 64 bits | by window: shared, local, parameters; else device memory |
//! | global, const | 64 bits | device memory: addresses of this process |
//! | shared | offsets, 32 or 64 bits | `Block::shared` |
//! | local | offsets, 32 or 64 bits | `Warp::local` |
//! | param of a kernel | constant offsets | the launch's buffer |
//! | param of a function | constant offsets | the frame's part of `Warp::local` |
//!
//! Local memory is kept as rows of 8 bytes for each lane. Lanes nearly always use the same offset, and then touch one row.

pub(crate) mod async_copy;
pub(crate) mod atom;
pub(crate) mod atom_wide;
pub(crate) mod heap;
pub(crate) mod lane_address;
pub(crate) mod load;
pub(crate) mod local;
pub(crate) mod local_rows;
pub(crate) mod multimem;
pub(crate) mod param;
pub(crate) mod pointer;
pub(crate) mod ranges;
pub(crate) mod raw;
pub(crate) mod shared_memory;
pub(crate) mod store;
pub(crate) mod stretch;
pub(crate) mod tensor_copy;
pub(crate) mod wide;
pub(crate) mod word;

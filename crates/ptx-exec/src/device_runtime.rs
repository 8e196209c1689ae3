//! The device runtime (`__cudaCDP2*`): kernels that launch kernels, copy and fill memory, and ask about the device.
//!
//! What a grid asks for is kept until the grid is done, then done in the order in which it was asked for, and only then
//! what was asked for behind it (tail launches). So streams and events have nothing left to order: every wait is for
//! something asked for earlier. A grid that is launched does not begin before the one that launched it has ended; CUDA
//! promises no more, since parent and child may not rely on running at the same time.
//!
//! | module | functions |
//! |---|---|
//! | `jobs` | what a grid has asked for |
//! | `per_lane` | running a function for each lane |
//! | `launches` | parameter buffers and launches |
//! | `copies` | copies and fills |
//! | `streams` | streams and events |
//! | `queries` | devices, limits, kernels, occupancy, versions, memory |
//! | `errors` | last errors, their names and texts |

mod copies;
mod error;
mod errors;
pub(crate) mod jobs;
mod launches;
mod per_lane;
mod queries;
mod streams;

use crate::engine::machine::Exec;
pub(crate) use copies::{run_copy, run_fill};

/// The code that stands for a call of `name`, which may name the variant for per-thread default streams: with all
/// jobs in one order the two are the same.
pub(crate) fn find(name: &str) -> Option<Exec> {
    let name = name.strip_prefix("__cudaCDP2")?;
    let name = name.strip_suffix("_ptsz").unwrap_or(name);
    let function = launches::find(name).or_else(|| copies::find(name)).or_else(|| streams::find(name));
    function.or_else(|| queries::find(name)).or_else(|| errors::find(name))
}

//! The device runtime (`__cudaCDP2*`): kernels that launch kernels, copy and fill memory, and query the device.
//!
//! Requests of a grid wait until the grid is done, then run in their order, followed by tail launches. So streams and events have
//! nothing left to order: every wait is for an earlier request. A grid begins only after the grid that launched it has ended.
//! CUDA promises no more, since parent and child may not rely on running at the same time.
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

/// Returns the code for a call of `name`, which may be the variant for per-thread default streams. All jobs run in one order, so
/// both variants are the same.
pub(crate) fn find(name: &str) -> Option<Exec> {
    let name = name.strip_prefix("__cudaCDP2")?;
    let name = name.strip_suffix("_ptsz").unwrap_or(name);
    let function = launches::find(name).or_else(|| copies::find(name)).or_else(|| streams::find(name));
    function.or_else(|| queries::find(name)).or_else(|| errors::find(name))
}

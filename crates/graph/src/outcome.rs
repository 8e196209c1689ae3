//! What functions of graphs give.

use katydid_cuda_sys::CUresult;

/// What every function here gives.
pub type Outcome<T = ()> = Result<T, CUresult>;

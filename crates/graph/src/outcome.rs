//! The result of functions on graphs: a value, or the driver's code.

use katydid_cuda_sys::CUresult;

/// What every function here gives.
pub type Outcome<T = ()> = Result<T, CUresult>;

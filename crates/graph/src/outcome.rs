//! The result of functions on graphs: a value, or the driver's code.

use katydid_cuda_sys::CUresult;

/// The result of every function here.
pub type Outcome<T = ()> = Result<T, CUresult>;

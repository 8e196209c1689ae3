//! The result of a rule: the checked value, or the driver's code.

use katydid_cuda_sys::CUresult;

/// The result of a rule.
pub type Outcome<T = ()> = Result<T, CUresult>;

/// The code for arguments that no device accepts.
pub(crate) const INVALID_VALUE: CUresult = CUresult::ERROR_INVALID_VALUE;

/// Returns an error for an invalid value.
#[inline]
pub(crate) const fn check(is_right: bool) -> Outcome {
    if is_right { Ok(()) } else { Err(INVALID_VALUE) }
}

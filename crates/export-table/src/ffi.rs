//! The C interface of every slot: status numbers, and a guard against panics in foreign frames.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// A `CUresult` as C callers see it. A plain number, because a caller may pass any value back.
pub type Status = u32;

/// The results that slots return by themselves.
pub mod status {
    use super::Status;

    /// The slot has done its work.
    pub const SUCCESS: Status = 0;
    /// A null output, or an unknown id.
    pub const INVALID_VALUE: Status = 1;
    /// The process has no memory left.
    pub const OUT_OF_MEMORY: Status = 2;
    /// No library has installed its facts yet.
    pub const NOT_INITIALIZED: Status = 3;
    /// There is no current context, or it is not active.
    pub const INVALID_CONTEXT: Status = 201;
    /// The key, wrapper or object does not exist (or, for a put, already does).
    pub const INVALID_HANDLE: Status = 400;
    /// No value is stored under this key.
    pub const NOT_FOUND: Status = 500;
    /// The real driver has this slot, and Katydid does not.
    pub const NOT_SUPPORTED: Status = 801;
    /// An internal error of Katydid: the slot panicked.
    pub const UNKNOWN: Status = 999;
}

/// Runs a slot's body and returns its status; a panic becomes `UNKNOWN` instead of unwinding into C.
pub(crate) fn guard(body: impl FnOnce() -> Result<(), Status>) -> Status {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => status::SUCCESS,
        Ok(Err(code)) => code,
        Err(_) => status::UNKNOWN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_a_status() {
        assert_eq!(guard(|| panic!("on purpose")), status::UNKNOWN);
        assert_eq!(guard(|| Err(status::INVALID_HANDLE)), status::INVALID_HANDLE);
        assert_eq!(guard(|| Ok(())), status::SUCCESS);
    }
}

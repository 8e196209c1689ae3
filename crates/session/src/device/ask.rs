//! Calls of a driver that answer through a pointer.

#![expect(unsafe_code, reason = "calls the driver")]

use katydid_cuda_sys::CUresult;
use katydid_driver::Driver;
use katydid_wire::facts::DriverAnswer;

/// Returns the value that `call` writes to its output.
///
/// # Errors
///
/// The driver's code; a written value is dropped.
pub(crate) fn ask<T: Default>(call: impl FnOnce(*mut T) -> CUresult) -> Result<T, CUresult> {
    let mut value = T::default();
    call(&raw mut value).ok()?;
    Ok(value)
}

/// As [`ask`], with code and value side by side, for facts that keep both.
pub(crate) fn answer<T: Default>(call: impl FnOnce(*mut T) -> CUresult) -> DriverAnswer<T> {
    match ask(call) {
        Ok(value) => DriverAnswer { code: 0, value },
        Err(code) => DriverAnswer { code: code.0, value: T::default() },
    }
}

/// Returns the free bytes, and all bytes, of the current context's device.
///
/// # Errors
///
/// The driver's code.
pub(crate) fn memory_info(driver: &Driver) -> Result<(u64, u64), CUresult> {
    let (mut free, mut total) = (0_usize, 0_usize);
    // SAFETY: both outputs are locals.
    unsafe { driver.cuMemGetInfo_v2(&raw mut free, &raw mut total) }.ok()?;
    Ok((free as u64, total as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_question_has_no_value() {
        assert_eq!(ask::<i32>(|_| CUresult::ERROR_INVALID_VALUE), Err(CUresult::ERROR_INVALID_VALUE));
        assert_eq!(answer::<i32>(|_| CUresult(1)), DriverAnswer { code: 1, value: 0 });
        assert_eq!(answer::<i32>(|_| CUresult::SUCCESS), DriverAnswer { code: 0, value: 0 });
    }
}

//! Questions to drivers.

use katydid_opencl_sys::{Code, void};

/// A value of a fixed size that a driver tells: `get` is given the size and the place.
pub(crate) fn ask<T: Default>(get: impl Fn(usize, *mut void) -> Code) -> Result<T, Code> {
    let mut value = T::default();
    get(size_of::<T>(), (&raw mut value).cast()).ok()?;
    Ok(value)
}

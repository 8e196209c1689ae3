//! Queries to drivers.

use katydid_opencl_sys::{Code, void};

/// Returns a value of fixed size from a driver: `get` receives the size and the address.
pub(crate) fn ask<T: Default>(get: impl Fn(usize, *mut void) -> Code) -> Result<T, Code> {
    let mut value = T::default();
    get(size_of::<T>(), (&raw mut value).cast()).ok()?;
    Ok(value)
}

//! The functions as an enumeration, and as the table that a driver fills in; generated.

#![allow(clippy::type_complexity, reason = "signatures are the vendor's")]

use crate::*;

include!(concat!(env!("OUT_DIR"), "/opencl_function.rs"));
include!(concat!(env!("OUT_DIR"), "/opencl_table.rs"));

impl std::fmt::Debug for Dispatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Dispatch")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    /// Places of the vendor's `cl_icd_dispatch`, counted in its header.
    #[test]
    fn functions_stand_where_loaders_look_for_them() {
        assert_eq!(offset_of!(Dispatch, clGetPlatformIDs), 0);
        assert_eq!(offset_of!(Dispatch, clGetExtensionFunctionAddress), 65 * 8);
        assert_eq!(offset_of!(Dispatch, clSetEventCallback), 81 * 8);
        assert_eq!(offset_of!(Dispatch, clCreateSubDevices), 93 * 8);
        assert_eq!(offset_of!(Dispatch, clCreateCommandQueueWithProperties), 123 * 8);
        assert_eq!(offset_of!(Dispatch, clSetContextDestructorCallback), 148 * 8);
        assert_eq!(size_of::<Dispatch>(), 149 * 8);
    }

    #[test]
    fn numbers_are_places_in_the_list() {
        assert!(Function::ALL.iter().enumerate().all(|(at, function)| *function as usize == at));
        assert_eq!(Function::clCreateBuffer.name(), "clCreateBuffer");
        assert!(Function::clEnqueueNativeKernel.is_refused() && !Function::clFinish.is_refused());
    }
}

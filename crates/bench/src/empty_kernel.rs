//! The kernel that costs nothing but its launch.

use std::ffi::CStr;

/// An empty kernel; every GPU that CUDA 13 knows takes it.
pub(super) const EMPTY_KERNEL_PTX: &CStr =
    c".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry nothing()\n{\n    ret;\n}\n";
/// Name of the empty kernel.
pub(super) const EMPTY_KERNEL_NAME: &CStr = c"nothing";

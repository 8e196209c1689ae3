//! A kernel that costs only its launch.

use std::ffi::CStr;

/// An empty kernel for every GPU that CUDA 13 supports.
pub(super) const EMPTY_KERNEL_PTX: &CStr =
    c".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry nothing()\n{\n    ret;\n}\n";
/// Name of the empty kernel.
pub(super) const EMPTY_KERNEL_NAME: &CStr = c"nothing";

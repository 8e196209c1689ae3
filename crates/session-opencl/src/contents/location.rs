//! Where the bytes of an area lie.

use std::sync::Arc;

use katydid_opencl_sys::cl_mem;

use crate::calls::pending_reads::PendingRead;

/// Where the bytes of an area lie.
pub(super) enum AreaLocation {
    /// In a buffer, with the flags that made it.
    Buffer(cl_mem, u64),
    /// In an image: elements, rows, slices; and the flags that made it.
    Image(cl_mem, [usize; 3], u64),
    /// In shared virtual memory, at this address.
    Svm(u64),
    /// In memory of the worker.
    PendingRead(Arc<PendingRead>),
}

//! Pins shared memory for drivers of discrete devices: as the memory of a buffer that stays mapped.
//!
//! From other memory, such a driver copies through its own pages, and slower. NVIDIA's moves 11 to 17 GB/s from and to the plain
//! staging area, and 55 GB/s when it is the memory of a buffer (measured on an H200). The buffer itself is never used. While it
//! is mapped, the standard gives its memory to the host, so any command may copy from and to it.

#![expect(unsafe_code, reason = "calls the driver")]

use std::ptr;

use katydid_opencl_sys::constant::{MAP_READ, MAP_WRITE, MEM_USE_HOST_PTR};
use katydid_opencl_sys::{Code, Dispatch, cl_command_queue, cl_context, cl_device_id, cl_mem, void};

use crate::drivers::call::{driver, make};
use crate::objects::lifetimes::ObjectRef;

/// State of the staging area in a context.
#[derive(Debug)]
pub(crate) enum StagingState {
    /// Not pinned yet: the bytes that have passed so far.
    Counting(u64),
    /// Never pinned: the driver refused, or the context has only processors.
    Plain,
    /// Pinned as a whole, until this is dropped.
    PinnedBuffer { _buffer: PinnedBuffer },
}

/// A buffer that stays mapped until this is dropped.
#[derive(Debug)]
pub(crate) struct PinnedBuffer {
    api: &'static Dispatch,
    queue: cl_command_queue,
    memory: cl_mem,
    pointer: *mut void,
    /// The context with its devices, released after the queue.
    _context: ObjectRef,
}

// SAFETY: OpenCL objects may be used from every thread; the pointer is not followed here.
unsafe impl Send for PinnedBuffer {}

impl PinnedBuffer {
    /// Pins memory in a context with a device.
    pub(super) fn new(
        api: &'static Dispatch,
        (held, device): (ObjectRef, cl_device_id),
        (start, size): (*mut void, usize),
    ) -> Result<Self, Code> {
        /// `CL_MEM_READ_WRITE`: kernels read and write the buffer.
        const READ_WRITE: u64 = 1;
        let context = cl_context(held.object().handle);
        let queue = make!(api, clCreateCommandQueue(context, device, 0))?;
        let buffer = make!(api, clCreateBuffer(context, READ_WRITE | MEM_USE_HOST_PTR, size, start));
        let memory = buffer.inspect_err(|_| {
            // A queue that cannot be released ends with the process.
            let _ = driver!(api, clReleaseCommandQueue(queue));
        })?;
        let mut pinned = Self { api, queue, memory, pointer: ptr::null_mut(), _context: held };
        let (way, null) = (MAP_READ | MAP_WRITE, ptr::null_mut());
        pinned.pointer = make!(api, clEnqueueMapBuffer(queue, memory, 1, way, 0, size, 0, ptr::null(), null,))?;
        // A driver that maps elsewhere copies, and has not pinned the memory.
        if pinned.pointer == start { Ok(pinned) } else { Err(Code::MAP_FAILURE) }
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        let Self { api, queue, memory, pointer, .. } = *self;
        // A map that cannot be undone ends with the process.
        if !pointer.is_null() {
            let _ = driver!(api, clEnqueueUnmapMemObject(queue, memory, pointer, 0, ptr::null(), ptr::null_mut()));
            let _ = driver!(api, clFinish(queue));
        }
        let _ = driver!(api, clReleaseMemObject(memory));
        let _ = driver!(api, clReleaseCommandQueue(queue));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};

    use katydid_opencl_sys::cl_event;

    use super::*;
    use crate::objects::lifetimes::OwnedObject;
    use crate::objects::object::Object;
    use crate::tests::empty_table;

    /// Number of live objects of the driver below; and where it maps buffers (0: at their own memory).
    static ALIVE: AtomicI64 = AtomicI64::new(0);
    static ELSEWHERE: AtomicUsize = AtomicUsize::new(0);

    unsafe extern "C" fn queue(_: cl_context, _: cl_device_id, _: u64, code: *mut i32) -> cl_command_queue {
        ALIVE.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller asks for the code.
        unsafe { code.write(0) };
        cl_command_queue(ptr::without_provenance_mut(64))
    }

    unsafe extern "C" fn buffer(_: cl_context, _: u64, _: usize, start: *mut void, code: *mut i32) -> cl_mem {
        ALIVE.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { code.write(0) };
        cl_mem(start)
    }

    unsafe extern "C" fn map(
        _: cl_command_queue,
        memory: cl_mem,
        _: u32,
        _: u64,
        _: usize,
        _: usize,
        _: u32,
        _: *const cl_event,
        _: *mut cl_event,
        code: *mut i32,
    ) -> *mut void {
        ALIVE.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { code.write(0) };
        match ELSEWHERE.load(Ordering::Relaxed) {
            0 => memory.0,
            other => ptr::without_provenance_mut(other),
        }
    }

    unsafe extern "C" fn unmap(
        _: cl_command_queue,
        _: cl_mem,
        _: *mut void,
        _: u32,
        _: *const cl_event,
        _: *mut cl_event,
    ) -> i32 {
        ALIVE.fetch_sub(1, Ordering::Relaxed);
        0
    }

    unsafe extern "C" fn finish(_: cl_command_queue) -> i32 {
        0
    }

    unsafe extern "C" fn release_queue(_: cl_command_queue) -> i32 {
        ALIVE.fetch_sub(1, Ordering::Relaxed);
        0
    }

    unsafe extern "C" fn release_buffer(_: cl_mem) -> i32 {
        ALIVE.fetch_sub(1, Ordering::Relaxed);
        0
    }

    #[test]
    fn memory_is_known_while_its_buffer_is_mapped_and_nothing_is_left() {
        let mut api = empty_table();
        api.clCreateCommandQueue = Some(queue);
        api.clCreateBuffer = Some(buffer);
        api.clEnqueueMapBuffer = Some(map);
        api.clEnqueueUnmapMemObject = Some(unmap);
        api.clFinish = Some(finish);
        api.clReleaseCommandQueue = Some(release_queue);
        api.clReleaseMemObject = Some(release_buffer);
        let api: &'static Dispatch = Box::leak(Box::new(api));
        let context = OwnedObject::new(Object { handle: cl_context::NULL, api, size: 0 }, Vec::new());
        let make = || {
            let context = ObjectRef::clone(&context);
            PinnedBuffer::new(api, (context, cl_device_id::NULL), (ptr::without_provenance_mut(4096), 8192))
        };
        let pinned = make().unwrap();
        assert_eq!(ALIVE.load(Ordering::Relaxed), 3);
        drop(pinned);
        assert_eq!(ALIVE.load(Ordering::Relaxed), 0);
        ELSEWHERE.store(1 << 20, Ordering::Relaxed);
        assert_eq!(make().unwrap_err(), Code::MAP_FAILURE);
        assert_eq!(ALIVE.load(Ordering::Relaxed), 0);
    }
}

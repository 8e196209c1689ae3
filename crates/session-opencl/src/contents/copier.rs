//! A queue of the worker's own in a context, to copy with.

#![expect(unsafe_code, reason = "has the driver copy to and from mapped memory")]

use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use katydid_opencl_sys::constant::{DEVICE_GLOBAL_MEM_SIZE, MAP_READ, MAP_WRITE, MEM_HOST_WRITE_ONLY};
use katydid_opencl_sys::{Code, Dispatch, cl_command_queue, cl_context, cl_device_id, cl_mem, void};

use super::location::AreaLocation;
use crate::drivers::call::{driver, make};
use crate::drivers::query::ask;
use crate::objects::lifetimes::ObjectRef;

/// `CL_MEM_READ_WRITE`: kernels read and write the buffer.
const MEM_READ_WRITE: u64 = 1;

/// The queue, with its context.
pub(crate) struct Copier {
    pub(crate) queue: cl_command_queue,
    pub(crate) context: cl_context,
    /// The device of the queue.
    pub(super) device: cl_device_id,
    pub(crate) api: &'static Dispatch,
    /// Whether all devices of the context are processors, so that its memory lies in this process.
    pub(super) is_host: bool,
    /// Held by the thread that reads a part of a buffer.
    ///
    /// The queue runs reads one after the other in any case. PoCL's `basic` devices run commands on the threads that enqueue
    /// them. Before PoCL 5.0, a command that waits for another thread's command deadlocks.
    pub(super) reading: Mutex<()>,
    /// The context with its devices, released after the queue.
    pub(super) _context: ObjectRef,
}

// SAFETY: OpenCL objects may be used from every thread; no pointer is followed here.
unsafe impl Send for Copier {}
// SAFETY: as above.
unsafe impl Sync for Copier {}

impl Drop for Copier {
    fn drop(&mut self) {
        // A queue that cannot be released ends with the process.
        let _ = driver!(self.api, clReleaseCommandQueue(self.queue));
    }
}

impl Copier {
    /// Returns the bytes of the device's memory; 0 if the driver does not tell.
    pub(super) fn device_bytes(&self) -> u64 {
        let null = ptr::null_mut();
        let get = |size, out| driver!(self.api, clGetDeviceInfo(self.device, DEVICE_GLOBAL_MEM_SIZE, size, out, null));
        ask(get).unwrap_or(0)
    }

    /// Maps a whole buffer at an address in this process, for the life of the value. A buffer to be written may appear as zeros.
    pub(super) fn map(&self, memory: cl_mem, (bytes, flags): (u64, u64), is_out: bool) -> Result<Map<'_>, Code> {
        // A map for writing also fetches the contents.
        let way = if is_out && flags & MEM_HOST_WRITE_ONLY == 0 { MAP_READ } else { MAP_WRITE };
        let (queue, size, null) = (self.queue, bytes as usize, ptr::null_mut());
        let pointer = make!(self.api, clEnqueueMapBuffer(queue, memory, 1, way, 0, size, 0, ptr::null(), null,))?;
        Ok(Map { copier: self, memory, pointer })
    }

    pub(super) fn read(&self, memory: cl_mem, at: u64, bytes: u64, to: *mut void) -> Result<(), Code> {
        let (queue, size, null) = (self.queue, bytes as usize, ptr::null_mut());
        let _reading = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        driver!(self.api, clEnqueueReadBuffer(queue, memory, 1, at as usize, size, to, 0, ptr::null(), null)).ok()
    }

    pub(crate) fn write(&self, memory: cl_mem, bytes: u64, from: *const void) -> Result<(), Code> {
        let (queue, size, null) = (self.queue, bytes as usize, ptr::null_mut());
        driver!(self.api, clEnqueueWriteBuffer(queue, memory, 1, 0, size, from, 0, ptr::null(), null)).ok()
    }

    pub(super) fn copy_svm(&self, to: *mut void, from: *const void, bytes: u64) -> Result<(), Code> {
        let (queue, size, null) = (self.queue, bytes as usize, ptr::null_mut());
        driver!(self.api, clEnqueueSVMMemcpy(queue, 1, to, from, size, 0, ptr::null(), null)).ok()
    }

    /// Runs `work` with a temporary buffer.
    pub(super) fn through(&self, bytes: u64, work: impl FnOnce(cl_mem) -> Result<(), Code>) -> Result<(), Code> {
        let (size, null) = (bytes as usize, ptr::null_mut());
        let scratch = make!(self.api, clCreateBuffer(self.context, MEM_READ_WRITE, size, null))?;
        let done = work(scratch);
        driver!(self.api, clReleaseMemObject(scratch)).ok()?;
        done
    }

    /// Copies between memory that the host may not access and a temporary buffer.
    pub(super) fn between(
        &self,
        pointer: &AreaLocation,
        scratch: cl_mem,
        bytes: u64,
        is_out: bool,
    ) -> Result<(), Code> {
        let (queue, size, null, none) = (self.queue, bytes as usize, ptr::null_mut(), ptr::null());
        let zero = [0; 3];
        let start = zero.as_ptr();
        let code = match pointer {
            AreaLocation::Buffer(memory, _) => {
                let (from, to) = if is_out { (*memory, scratch) } else { (scratch, *memory) };
                driver!(self.api, clEnqueueCopyBuffer(queue, from, to, 0, 0, size, 0, none, null))
            }
            AreaLocation::Image(memory, region, _) if is_out => {
                let area = region.as_ptr();
                driver!(self.api, clEnqueueCopyImageToBuffer(queue, *memory, scratch, start, area, 0, 0, none, null))
            }
            AreaLocation::Image(memory, region, _) => {
                let area = region.as_ptr();
                driver!(self.api, clEnqueueCopyBufferToImage(queue, scratch, *memory, 0, start, area, 0, none, null))
            }
            _ => Code::INVALID_VALUE,
        };
        code.ok()?;
        driver!(self.api, clFinish(queue)).ok()
    }
}

/// A mapped buffer.
pub(super) struct Map<'a> {
    copier: &'a Copier,
    memory: cl_mem,
    pub(super) pointer: *mut void,
}

impl Drop for Map<'_> {
    fn drop(&mut self) {
        let (api, queue, null) = (self.copier.api, self.copier.queue, ptr::null_mut());
        // A buffer that cannot be unmapped stays mapped, which affects only the driver.
        let _ = driver!(api, clEnqueueUnmapMemObject(queue, self.memory, self.pointer, 0, ptr::null(), null));
        let _ = driver!(api, clFinish(queue));
    }
}

/// Memory of the device that holds a copy of contents.
pub(super) struct DeviceCopy {
    copier: Arc<Copier>,
    memory: cl_mem,
}

// SAFETY: as for `Copier`.
unsafe impl Send for DeviceCopy {}
// SAFETY: as above.
unsafe impl Sync for DeviceCopy {}

impl DeviceCopy {
    /// Copies the contents at a location.
    pub(super) fn of(copier: &Arc<Copier>, pointer: &AreaLocation, bytes: u64) -> Result<Self, Code> {
        let (size, null) = (bytes as usize, ptr::null_mut());
        let memory = make!(copier.api, clCreateBuffer(copier.context, MEM_READ_WRITE, size, null))?;
        let copy = Self { copier: Arc::clone(copier), memory };
        copy.copier.between(pointer, memory, bytes, true)?;
        Ok(copy)
    }

    /// Fills `out` with the bytes at an offset.
    pub(super) fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), Code> {
        self.copier.read(self.memory, offset, out.len() as u64, out.as_mut_ptr().cast())
    }
}

impl Drop for DeviceCopy {
    fn drop(&mut self) {
        let _ = driver!(self.copier.api, clReleaseMemObject(self.memory));
    }
}

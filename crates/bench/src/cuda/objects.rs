//! Streams, events, graphs and modules that measurements make and destroy.

use super::{CUresult, Cuda, CudaError, Handle, PinnedMemory};
use std::ffi::{CStr, c_void};
use std::ptr;

/// A separate stream, destroyed on drop.
pub(crate) struct Stream<'a> {
    cuda: &'a Cuda,
    handle: Handle,
}

/// A `CUevent`, destroyed on drop.
pub(crate) struct Event<'a> {
    cuda: &'a Cuda,
    handle: Handle,
}

/// An executable graph, destroyed on drop.
pub(crate) struct Graph<'a> {
    cuda: &'a Cuda,
    handle: Handle,
}

/// Under this mode, the calls of other threads do not affect a capture.
const CAPTURE_MODE_THREAD_LOCAL: u32 = 1;

impl Cuda {
    /// Makes a stream that does not wait for the default stream.
    pub(crate) fn new_stream(&self) -> Result<Stream<'_>, CudaError> {
        let mut handle = ptr::null_mut();
        call!(self.functions, cuStreamCreate(&raw mut handle, 1))?;
        Ok(Stream { cuda: self, handle })
    }

    /// Makes an event with times.
    pub(crate) fn new_event(&self) -> Result<Event<'_>, CudaError> {
        let mut handle = ptr::null_mut();
        call!(self.functions, cuEventCreate(&raw mut handle, 0))?;
        Ok(Event { cuda: self, handle })
    }

    /// Fails unless the one event is done.
    pub(crate) fn query_event(&self) -> Result<(), CudaError> {
        call!(self.functions, cuEventQuery(self.event))
    }

    /// Waits for the one event.
    pub(crate) fn wait_for_event(&self) -> Result<(), CudaError> {
        call!(self.functions, cuEventSynchronize(self.event))
    }

    /// Makes a chain of `nodes` empty kernels.
    pub(crate) fn chain(&self, nodes: u32) -> Result<Graph<'_>, CudaError> {
        let (mut graph, mut handle) = (ptr::null_mut(), ptr::null_mut());
        call!(self.functions, cuStreamBeginCapture_v2(self.stream, CAPTURE_MODE_THREAD_LOCAL))?;
        let launched = (0..nodes).try_for_each(|_| self.launch());
        call!(self.functions, cuStreamEndCapture(self.stream, &raw mut graph))?;
        launched?;
        let result = call!(self.functions, cuGraphInstantiateWithFlags(&raw mut handle, graph, 0));
        call!(self.functions, cuGraphDestroy(graph))?;
        result.map(|()| Graph { cuda: self, handle })
    }

    /// Loads a module and unloads it.
    pub(crate) fn load_and_unload(&self, ptx: &CStr) -> Result<(), CudaError> {
        let module = self.module(ptx)?;
        call!(self.functions, cuModuleUnload(module.0))
    }

    /// Fills device memory with zeros; does not wait.
    pub(crate) fn clear(&self, at: u64, bytes: usize) -> Result<(), CudaError> {
        call!(self.functions, cuMemsetD8Async(at, 0, bytes, self.stream))
    }
}

impl Stream<'_> {
    /// Launches one thread of the kernel.
    pub(crate) fn launch(&self) -> Result<(), CudaError> {
        let (none, cuda) = (ptr::null_mut(), self.cuda);
        call!(cuda.functions, cuLaunchKernel(cuda.kernel, 1, 1, 1, 1, 1, 1, 0, self.handle, none, none))
    }

    /// Waits for all work of the stream.
    pub(crate) fn synchronize(&self) -> Result<(), CudaError> {
        call!(self.cuda.functions, cuStreamSynchronize(self.handle))
    }

    /// Begins a copy to the device. The memory must live until a wait for the stream.
    pub(crate) fn begin_copy_in(&self, to: u64, from: &PinnedMemory<'_>) -> Result<(), CudaError> {
        call!(self.cuda.functions, cuMemcpyHtoDAsync_v2(to, from.start.cast::<c_void>(), from.bytes, self.handle))
    }

    /// Begins a copy from the device. The memory must live until a wait for the stream.
    pub(crate) fn begin_copy_out(&self, to: &PinnedMemory<'_>, from: u64) -> Result<(), CudaError> {
        call!(self.cuda.functions, cuMemcpyDtoHAsync_v2(to.start.cast::<c_void>(), from, to.bytes, self.handle))
    }

    /// Records an event in the stream.
    pub(crate) fn record(&self, event: &Event<'_>) -> Result<(), CudaError> {
        call!(self.cuda.functions, cuEventRecord(event.handle, self.handle))
    }
}

impl Event<'_> {
    /// Records it in the main stream.
    pub(crate) fn record(&self) -> Result<(), CudaError> {
        call!(self.cuda.functions, cuEventRecord(self.handle, self.cuda.stream))
    }

    /// Blocks until the event is complete.
    pub(crate) fn wait(&self) -> Result<(), CudaError> {
        call!(self.cuda.functions, cuEventSynchronize(self.handle))
    }
}

impl Graph<'_> {
    /// Launches it into the main stream.
    pub(crate) fn launch(&self) -> Result<(), CudaError> {
        call!(self.cuda.functions, cuGraphLaunch(self.handle, self.cuda.stream))
    }
}

impl Drop for Stream<'_> {
    fn drop(&mut self) {
        let _ = call!(self.cuda.functions, cuStreamDestroy_v2(self.handle));
    }
}

impl Drop for Event<'_> {
    fn drop(&mut self) {
        let _ = call!(self.cuda.functions, cuEventDestroy_v2(self.handle));
    }
}

impl Drop for Graph<'_> {
    fn drop(&mut self) {
        let _ = call!(self.cuda.functions, cuGraphExecDestroy(self.handle));
    }
}

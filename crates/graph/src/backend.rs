//! The interface to a driver library: its objects, its memory, and the execution of graphs.

#![expect(unsafe_code, reason = "declares what reads parameters of C callers")]

use std::ffi::c_void;
use std::sync::Arc;

use katydid_cuda_sys::{
    CUDA_MEM_ALLOC_NODE_PARAMS, CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS, CUcontext, CUevent, CUstream,
    CUstreamBatchMemOpParams,
};

use crate::captures::CaptureStream;
use crate::handles::GraphId;
use crate::outcome::Outcome;
use crate::params::{Attributes, KeepAlive};
use crate::plan::{Plan, PlanStep};

/// A launch as a program describes it for a node.
#[derive(Clone, Debug)]
pub struct Launch {
    /// A function, or a kernel in place of one; 0 for none.
    pub function: usize,
    /// A kernel; ignored if there is a function.
    pub kernel: usize,
    /// The context for that kernel, 0 for the current one.
    pub context: usize,
    /// Blocks of the grid along each axis.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Dynamic shared memory in bytes.
    pub shared: u32,
    /// The array of pointers to arguments, or null.
    pub array: *mut *mut c_void,
    /// The list with packed arguments, or null.
    pub extra: *mut *mut c_void,
    /// Attributes of the launch.
    pub attributes: Attributes,
}

/// The driver library's facts about a checked launch.
#[derive(Debug)]
pub struct Code {
    /// Arguments, packed at their offsets.
    pub bytes: Vec<u8>,
    /// The offset of each argument.
    pub offsets: Vec<usize>,
    /// The context it runs in.
    pub context: usize,
    /// Name of the kernel in its module.
    pub name: Arc<str>,
    /// Keeps alive what the library needs to run it.
    pub keep_alive: KeepAlive,
}

/// The driver library behind graphs.
pub trait Backend: Sync {
    /// Returns whether the handle of a function is a kernel's.
    fn is_kernel(&self, function: usize) -> bool;

    /// Returns the handle of a kernel's function in a context.
    ///
    /// # Errors
    ///
    /// The kernel or the context has ended, or its code cannot be loaded there.
    fn function_of(&self, kernel: usize, context: usize) -> Outcome<usize>;

    /// Returns the handle of the context in an argument: null is the current one.
    ///
    /// # Errors
    ///
    /// There is no context, or no such context.
    fn context(&self, context: CUcontext) -> Outcome<usize>;

    /// Resolves a stream handle, by the calling function's default stream.
    ///
    /// # Errors
    ///
    /// `ERROR_INVALID_HANDLE`, or the error of a missing current context.
    fn stream(&self, stream: CUstream) -> Outcome<CaptureStream>;

    /// Checks a launch and packs its arguments.
    ///
    /// # Errors
    ///
    /// As `cuLaunchKernel`.
    ///
    /// # Safety
    ///
    /// `array` and `extra` are null or as the driver API documents them for the function.
    unsafe fn kernel(&self, launch: &Launch) -> Outcome<Code>;

    /// Checks a copy and returns the kind of memory of each side: copies of other kinds cannot replace it.
    ///
    /// # Errors
    ///
    /// `ERROR_INVALID_VALUE` for memory that does not exist, or rows that do not fit.
    fn copy(&self, copy: &CUDA_MEMCPY3D, context: usize) -> Outcome<(u32, u32)>;

    /// Checks a fill.
    ///
    /// # Errors
    ///
    /// As for a copy.
    fn fill(&self, fill: &CUDA_MEMSET_NODE_PARAMS, context: usize) -> Outcome;

    /// Checks an operation on a word.
    ///
    /// # Errors
    ///
    /// `ERROR_INVALID_VALUE`, or `ERROR_NOT_SUPPORTED` for an unsupported operation.
    fn word(&self, operation: &CUstreamBatchMemOpParams, context: usize) -> Outcome;

    /// Checks an event.
    ///
    /// # Errors
    ///
    /// It is not an event.
    fn event(&self, event: CUevent) -> Outcome;

    /// Allocates memory for an allocation node; returns its address, and a value that frees it when dropped.
    ///
    /// # Errors
    ///
    /// `ERROR_OUT_OF_MEMORY`, or `ERROR_INVALID_VALUE` for an invalid location.
    fn allocate(&self, params: &CUDA_MEM_ALLOC_NODE_PARAMS) -> Outcome<(u64, KeepAlive)>;

    /// Refuses an invalid device.
    ///
    /// # Errors
    ///
    /// `ERROR_INVALID_DEVICE`.
    fn device(&self, device: i32) -> Outcome;

    /// Makes a value for conditional nodes of `graph`; each launch begins with `default`.
    ///
    /// # Errors
    ///
    /// The driver's code.
    fn condition(&self, graph: GraphId, context: usize, default: u32, flags: u32) -> Outcome<u64>;

    /// Forgets a graph with conditional handles that is gone.
    fn forget(&self, graph: GraphId, conditions: &[u64]);

    /// Makes an executable graph.
    ///
    /// # Errors
    ///
    /// The driver's code.
    fn instantiate(&self, exec: u32, graph: GraphId, plan: &Plan, flags: u64) -> Outcome;

    /// Changes one step of an executable graph, which has new parameters, or was enabled or disabled; `was` is the old one.
    ///
    /// # Errors
    ///
    /// The driver's code; the step then keeps its old parameters.
    fn change(&self, exec: u32, number: u32, was: &PlanStep, step: &PlanStep) -> Outcome;

    /// Launches an executable graph in a stream.
    ///
    /// # Errors
    ///
    /// The driver's code.
    fn launch(&self, exec: u32, plan: &Arc<Plan>, stream: CUstream) -> Outcome;

    /// Prepares an executable graph for its launch, in a stream.
    ///
    /// # Errors
    ///
    /// The driver's code.
    fn upload(&self, exec: u32, stream: CUstream) -> Outcome;

    /// Ends an executable graph when it has run.
    ///
    /// # Errors
    ///
    /// The driver's code.
    fn destroy(&self, exec: u32) -> Outcome;

    /// Makes an executable graph, launches it once in a stream, and ends it.
    ///
    /// # Errors
    ///
    /// The driver's code.
    fn run_once(&self, exec: u32, plan: &Arc<Plan>, stream: CUstream) -> Outcome {
        self.instantiate(exec, exec, plan, 0)?;
        let launched = self.launch(exec, plan, stream);
        launched.and(self.destroy(exec))
    }

    /// Calls the destructor of a user object, on a thread of the library.
    fn destruct(&self, function: usize, data: usize);
}

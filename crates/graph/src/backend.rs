//! What a driver library supplies: its objects, its memory, and the running of graphs.

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
    /// A function, or a kernel where a function is meant; 0 for none.
    pub function: usize,
    /// A kernel; counts without a function only.
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
    /// The list that gives them packed, or null.
    pub extra: *mut *mut c_void,
    /// Attributes of the launch.
    pub attributes: Attributes,
}

/// What the driver library knows of a checked launch.
#[derive(Debug)]
pub struct Code {
    /// Arguments, packed at their offsets.
    pub bytes: Vec<u8>,
    /// Where each of them lies.
    pub offsets: Vec<usize>,
    /// The context it runs in.
    pub context: usize,
    /// Name of the kernel, as its module has it.
    pub name: Arc<str>,
    /// Whatever the library needs to run it.
    pub keep_alive: KeepAlive,
}

/// What graphs ask of the driver library that holds them.
pub trait Backend: Sync {
    /// Whether what is named as a function is a kernel.
    fn is_kernel(&self, function: usize) -> bool;

    /// The handle of the function that a kernel is in a context.
    ///
    /// # Errors
    ///
    /// The kernel or the context has ended, or its code cannot be loaded there.
    fn function_of(&self, kernel: usize, context: usize) -> Outcome<usize>;

    /// The handle of the context that an argument means: null is the current one.
    ///
    /// # Errors
    ///
    /// There is none, or no such.
    fn context(&self, context: CUcontext) -> Outcome<usize>;

    /// Which stream a handle means, where the calling function's default stream counts.
    ///
    /// # Errors
    ///
    /// `ERROR_INVALID_HANDLE`, or that no context is current.
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

    /// Checks a copy and answers what kind of memory each side is: copies of another kind cannot replace it.
    ///
    /// # Errors
    ///
    /// `ERROR_INVALID_VALUE` for memory that is not there, or rows that do not fit.
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
    /// `ERROR_INVALID_VALUE`, or `ERROR_NOT_SUPPORTED` for an operation that is not there.
    fn word(&self, operation: &CUstreamBatchMemOpParams, context: usize) -> Outcome;

    /// Checks an event.
    ///
    /// # Errors
    ///
    /// It is none.
    fn event(&self, event: CUevent) -> Outcome;

    /// Memory for an allocation node: its address, and what gives it back when dropped.
    ///
    /// # Errors
    ///
    /// `ERROR_OUT_OF_MEMORY`, or `ERROR_INVALID_VALUE` for a place that is none.
    fn allocate(&self, params: &CUDA_MEM_ALLOC_NODE_PARAMS) -> Outcome<(u64, KeepAlive)>;

    /// Refuses a device that is none.
    ///
    /// # Errors
    ///
    /// `ERROR_INVALID_DEVICE`.
    fn device(&self, device: i32) -> Outcome;

    /// A value for conditional nodes of `graph`; `default` is what each launch begins with.
    ///
    /// # Errors
    ///
    /// The driver's.
    fn condition(&self, graph: GraphId, context: usize, default: u32, flags: u32) -> Outcome<u64>;

    /// A graph with conditional handles is gone.
    fn forget(&self, graph: GraphId, conditions: &[u64]);

    /// Makes an executable graph.
    ///
    /// # Errors
    ///
    /// What the driver says.
    fn instantiate(&self, exec: u32, graph: GraphId, plan: &Plan, flags: u64) -> Outcome;

    /// One step of an executable graph has new parameters, or has been enabled or disabled; it `was` another.
    ///
    /// # Errors
    ///
    /// What the driver says; the step then keeps its old parameters.
    fn change(&self, exec: u32, number: u32, was: &PlanStep, step: &PlanStep) -> Outcome;

    /// Puts a launch of an executable graph into a stream.
    ///
    /// # Errors
    ///
    /// What the driver says.
    fn launch(&self, exec: u32, plan: &Arc<Plan>, stream: CUstream) -> Outcome;

    /// Prepares an executable graph for its launch, in a stream.
    ///
    /// # Errors
    ///
    /// What the driver says.
    fn upload(&self, exec: u32, stream: CUstream) -> Outcome;

    /// An executable graph ends when it has run.
    ///
    /// # Errors
    ///
    /// What the driver says.
    fn destroy(&self, exec: u32) -> Outcome;

    /// Makes an executable graph, puts its only launch into a stream, and ends it.
    ///
    /// # Errors
    ///
    /// What the driver says.
    fn run_once(&self, exec: u32, plan: &Arc<Plan>, stream: CUstream) -> Outcome {
        self.instantiate(exec, exec, plan, 0)?;
        let launched = self.launch(exec, plan, stream);
        launched.and(self.destroy(exec))
    }

    /// Calls the destructor of a user object, on a thread of the library's.
    fn destruct(&self, function: usize, data: usize);
}

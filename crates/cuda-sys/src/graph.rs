//! Structures and constants of graphs and stream capture. Sizes are those of the vendor's header for CUDA 13.0.

#![expect(unsafe_code, reason = "asserts that structures are plain bytes")]

use std::ffi::c_void;

use crate::structure::structures;
use crate::{CUcontext, CUdeviceptr, CUfunction, CUgraph, CUgraphNode, CUkernel, CUmemLocation, CUstream, Pod};

structures! {
    /// A kernel node as programs of CUDA 11 describe it.
    CUDA_KERNEL_NODE_PARAMS_v1 56 {
        func: CUfunction, gridDimX: u32, gridDimY: u32, gridDimZ: u32, blockDimX: u32, blockDimY: u32, blockDimZ: u32,
        sharedMemBytes: u32, kernelParams: *mut *mut c_void, extra: *mut *mut c_void,
    }
    /// A kernel node: `kern` counts only without a `func`, `ctx` only with `kern`.
    CUDA_KERNEL_NODE_PARAMS 72 {
        func: CUfunction, gridDimX: u32, gridDimY: u32, gridDimZ: u32, blockDimX: u32, blockDimY: u32, blockDimZ: u32,
        sharedMemBytes: u32, kernelParams: *mut *mut c_void, extra: *mut *mut c_void, kern: CUkernel, ctx: CUcontext,
    }
    /// A fill: rows of `width` elements, `pitch` bytes apart.
    CUDA_MEMSET_NODE_PARAMS 40 {
        dst: CUdeviceptr, pitch: usize, value: u32, elementSize: u32, width: usize, height: usize,
    }
    /// A function of the program, as an address: it may be null in parameters that are to be refused.
    CUDA_HOST_NODE_PARAMS 16 { func: usize, userData: *mut c_void }
    /// An allocation; its address is written back.
    CUDA_MEM_ALLOC_NODE_PARAMS 120 {
        allocType: u32, handleTypes: u32, location: CUmemLocation, win32SecurityAttributes: *mut c_void,
        maxSize: usize, usage: u16, reserved: [u8; 54], accessDescs: *const c_void, accessDescCount: usize,
        bytesize: usize, dptr: CUdeviceptr,
    }
    /// Operations on words of memory, done in order.
    CUDA_BATCH_MEM_OP_NODE_PARAMS 32 {
        ctx: CUcontext, count: u32, paramArray: *mut CUstreamBatchMemOpParams, flags: u32,
    }
    /// One operation on a word: a union, of which every member begins with these.
    CUstreamBatchMemOpParams 48 { operation: u32, address: CUdeviceptr, value: u64, flags: u32, rest: [u64; 2] }
    /// Which part of a node an edge leaves from and leads to.
    CUgraphEdgeData 8 { from_port: u8, to_port: u8, type_: u8, reserved: [u8; 5] }
    /// How an instantiation is to be done, and how it went.
    CUDA_GRAPH_INSTANTIATE_PARAMS 32 {
        flags: u64, hUploadStream: CUstream, hErrNode_out: CUgraphNode, result_out: u32,
    }
    /// How an update went.
    CUgraphExecUpdateResultInfo 24 { result: u32, errorNode: CUgraphNode, errorFromNode: CUgraphNode }
    /// Parameters of a node of any type; what the payload is the type says.
    CUgraphNodeParams 256 { type_: u32, reserved0: [u32; 3], payload: [u64; 29], reserved2: u64 }
    /// Value of a kernel node's attribute.
    CUkernelNodeAttrValue 64 { words: [u64; 8] }
    /// A conditional node; its body graphs are written back.
    CUDA_CONDITIONAL_NODE_PARAMS 32 { handle: u64, type_: u32, size: u32, phGraph_out: *mut CUgraph, ctx: CUcontext }
}

macro_rules! constants {
    ($($(#[$doc:meta])* $ty:ident { $($name:ident = $value:literal),* $(,)? })*) => {$(
        $(#[$doc])*
        #[allow(missing_docs, reason = "the vendor's names say it")]
        pub mod $ty {
            $(pub const $name: u32 = $value;)*
        }
    )*};
}

constants! {
    /// Types of graph nodes, a `CUgraphNodeType` each.
    node_type {
        KERNEL = 0, MEMCPY = 1, MEMSET = 2, HOST = 3, GRAPH = 4, EMPTY = 5, WAIT_EVENT = 6, EVENT_RECORD = 7,
        EXT_SEMAS_SIGNAL = 8, EXT_SEMAS_WAIT = 9, MEM_ALLOC = 10, MEM_FREE = 11, BATCH_MEM_OP = 12, CONDITIONAL = 13,
    }
    /// Modes of a stream capture, a `CUstreamCaptureMode` each.
    capture_mode { GLOBAL = 0, THREAD_LOCAL = 1, RELAXED = 2 }
    /// States of a stream's capture, a `CUstreamCaptureStatus` each.
    capture_status { NONE = 0, ACTIVE = 1, INVALIDATED = 2 }
    /// Kinds of conditional nodes, a `CUgraphConditionalNodeType` each.
    conditional_type { IF = 0, WHILE = 1, SWITCH = 2 }
    /// Flags of `cuGraphInstantiate`, a bit each.
    instantiate_flags { AUTO_FREE_ON_LAUNCH = 1, UPLOAD = 2, DEVICE_LAUNCH = 4, USE_NODE_PRIORITY = 8 }
    /// Results of an instantiation, a `CUgraphInstantiateResult` each.
    instantiate_result { SUCCESS = 0, ERROR = 1, INVALID_STRUCTURE = 2, CONDITIONAL_HANDLE_UNUSED = 5 }
    /// Results of an update of an executable graph, a `CUgraphExecUpdateResult` each.
    update_result {
        SUCCESS = 0, ERROR = 1, TOPOLOGY_CHANGED = 2, NODE_TYPE_CHANGED = 3, FUNCTION_CHANGED = 4,
        PARAMETERS_CHANGED = 5, NOT_SUPPORTED = 6, UNSUPPORTED_FUNCTION_CHANGE = 7, ATTRIBUTES_CHANGED = 8,
    }
    /// Attributes of a device's graph memory, a `CUgraphMem_attribute` each.
    graph_memory { USED_CURRENT = 0, USED_HIGH = 1, RESERVED_CURRENT = 2, RESERVED_HIGH = 3 }
    /// Flags of `cuGraphDebugDotPrint`, a bit of `CUgraphDebugDot_flags` each.
    dot_flags {
        VERBOSE = 1, KERNEL_NODE_PARAMS = 4, MEMCPY_NODE_PARAMS = 8, MEMSET_NODE_PARAMS = 0x10, HOST_NODE_PARAMS = 0x20,
        EVENT_NODE_PARAMS = 0x40, KERNEL_NODE_ATTRIBUTES = 0x200, HANDLES = 0x400, MEM_ALLOC_NODE_PARAMS = 0x800,
        MEM_FREE_NODE_PARAMS = 0x1000, BATCH_MEM_OP_NODE_PARAMS = 0x2000, EXTRA_TOPO_INFO = 0x4000,
        CONDITIONAL_NODE_PARAMS = 0x8000,
    }
    /// Operations of `cuStreamBatchMemOp`, a `CUstreamBatchMemOpType` each.
    batch_operation {
        WAIT_VALUE_32 = 1, WRITE_VALUE_32 = 2, FLUSH_REMOTE_WRITES = 3, WAIT_VALUE_64 = 4, WRITE_VALUE_64 = 5, BARRIER = 6,
    }
}

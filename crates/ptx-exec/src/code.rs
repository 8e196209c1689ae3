//! Properties of a program's functions and kernels besides their instructions.

/// A function, kernel or not.
#[derive(Debug, Clone, Default)]
pub(crate) struct FunctionCode {
    /// Index of its first instruction.
    pub(crate) entry: u32,
    /// Index after its last instruction.
    pub(crate) end: u32,
    /// Rows of its frame.
    pub(crate) rows: u32,
    /// Bytes of local memory of its frame, a multiple of 16.
    pub(crate) local_bytes: u32,
    /// Parameters in that local memory. Kernels have none there.
    pub(crate) params: Vec<LocalArea>,
    /// Return values in that local memory.
    pub(crate) returns: Vec<LocalArea>,
}

/// A part of a frame's local memory, at a multiple of 8.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LocalArea {
    /// Bytes from the start of the frame.
    pub(crate) offset: u32,
    /// Length of the area in bytes.
    pub(crate) size: u32,
}

/// Arguments and results of a call, in the frame of the caller.
#[derive(Debug, Clone, Default)]
pub(crate) struct CallSite {
    /// Arguments in order.
    pub(crate) args: Vec<LocalArea>,
    /// Results in order.
    pub(crate) results: Vec<LocalArea>,
}

/// One kernel parameter in the parameter buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Param {
    /// Byte offset in the buffer.
    pub offset: u32,
    /// Length of the parameter in bytes.
    pub size: u32,
}

/// Properties of a kernel that a launch needs, besides its code.
#[derive(Debug)]
pub struct KernelInfo {
    /// Name of the kernel, mangled as in the PTX text.
    pub name: String,
    /// Parameters of the kernel, in their order.
    pub params: Vec<Param>,
    /// Bytes of the parameter buffer.
    pub param_bytes: u32,
    /// Bytes of shared memory that its code declares.
    pub static_shared: u32,
    /// Bytes of local memory per thread.
    pub local_bytes: u32,
    /// Bytes of `.const` variables of its program.
    pub const_bytes: u32,
    /// Estimated 32-bit registers per thread, as ptxas would allocate them: 16 to 255.
    pub registers: u32,
    /// Most threads a block may have (`.maxntid`, `.reqntid`, else 1024).
    pub max_threads: u32,
    /// Mandatory block dimensions (`.reqntid`).
    pub required_block: Option<[u32; 3]>,
    /// Mandatory cluster dimensions (`.reqnctapercluster`).
    pub required_cluster: Option<[u32; 3]>,
    /// Most blocks its clusters may have (`.maxclusterrank`).
    pub max_cluster: Option<u32>,
    /// Whether it can only be launched in clusters (`.explicitcluster`).
    pub needs_cluster: bool,
    /// PTX version times ten, e.g. 90.
    pub ptx_version: u32,
    /// `.target` of its PTX, e.g. 75.
    pub target: u32,
    /// Its function in the program.
    pub(crate) function: u32,
    /// Alignment of dynamic shared memory.
    pub(crate) dynamic_align: u32,
}

//! What an OpenCL session says: messages, and the layouts inside their bytes.
//!
//! Messages are generated from `spec/opencl-session.api`. Lists are a count and their elements; nothing here trusts a
//! count that the bytes do not hold.

pub mod list;
pub mod message;
pub mod transfer_extent;

/// Ids hold their object's kind above this bit, and below it a number of that kind, from 0.
pub const KIND_SHIFT: u32 = 28;

/// Kinds of objects in ids. Platforms and devices have the numbers of their order in the facts.
pub mod kind {
    /// `cl_platform_id`: an OpenCL implementation.
    pub const PLATFORM: u32 = 1;
    /// `cl_device_id`: a device, or a sub-device.
    pub const DEVICE: u32 = 2;
    /// `cl_context`: devices and the objects that they share.
    pub const CONTEXT: u32 = 3;
    /// `cl_command_queue`: commands for one device.
    pub const QUEUE: u32 = 4;
    /// `cl_mem`: a buffer, an image or a pipe.
    pub const MEMORY: u32 = 5;
    /// `cl_sampler`: how kernels read images.
    pub const SAMPLER: u32 = 6;
    /// `cl_program`: code for the devices of a context.
    pub const PROGRAM: u32 = 7;
    /// `cl_kernel`: a function of a program, with its arguments.
    pub const KERNEL: u32 = 8;
    /// `cl_event`: the state of a command.
    pub const EVENT: u32 = 9;
}

/// The id of the object of a kind with a number.
#[must_use]
pub fn id(kind: u32, number: u32) -> u32 {
    kind << KIND_SHIFT | number
}

/// What `kdclInfo` asks for: which of the driver's query functions is meant. `object`, and `second` where one is
/// named, are the objects asked about.
pub mod query {
    /// `clGetPlatformInfo` of a platform.
    pub const PLATFORM: u32 = 1;
    /// `clGetDeviceInfo` of a device.
    pub const DEVICE: u32 = 2;
    /// `clGetSupportedImageFormats`; the parameter is the kind of image, the input its flags.
    pub const IMAGE_FORMATS: u32 = 3;
    /// `clGetCommandQueueInfo` of a queue.
    pub const QUEUE: u32 = 4;
    /// `clGetMemObjectInfo` of a memory object.
    pub const MEMORY: u32 = 5;
    /// `clGetImageInfo` of an image.
    pub const IMAGE: u32 = 6;
    /// `clGetPipeInfo` of a pipe.
    pub const PIPE: u32 = 7;
    /// `clGetSamplerInfo` of a sampler.
    pub const SAMPLER: u32 = 8;
    /// `clGetProgramInfo` of a program.
    pub const PROGRAM: u32 = 9;
    /// `clGetProgramBuildInfo`; `second` is the device.
    pub const BUILD: u32 = 10;
    /// `clGetKernelInfo` of a kernel.
    pub const KERNEL: u32 = 11;
    /// `clGetKernelArgInfo`; `second` is the argument's index.
    pub const ARGUMENT: u32 = 12;
    /// `clGetKernelWorkGroupInfo`; `second` is the device.
    pub const WORK_GROUP: u32 = 13;
    /// `clGetKernelSubGroupInfo`; `second` is the device, the input the function's.
    pub const SUB_GROUP: u32 = 14;
    /// `clGetEventInfo` of an event.
    pub const EVENT: u32 = 15;
    /// `clGetEventProfilingInfo` of an event, for one parameter.
    pub const PROFILING: u32 = 16;
    /// `clGetEventProfilingInfo` of all parameters: numbers (`u64`), each parameter
    /// with its value, of those that the driver tells.
    pub const TIMES: u32 = 18;
    /// `clGetKernelSubGroupInfo` for the sizes of a group, of which the caller's buffer has this many bytes (`u64`, before the
    /// function's input); `second` is the device.
    pub const GROUP_SIZES: u32 = 19;
    /// The binaries of a program: a list of them. (17 once asked for binaries one after the other; it is not used again.)
    pub const BINARIES: u32 = 20;
    /// `clGetDeviceIDs` for a type (`u64`, the input) of which the platform has no device: the driver's code.
    pub const DEVICE_TYPE: u32 = 21;
}

/// What an argument of a kernel is, as far as the driver says.
pub mod argument {
    /// The driver does not say.
    pub const UNKNOWN: u8 = 0;
    /// An object: memory, a sampler, a queue.
    pub const OBJECT: u8 = 1;
    /// Local memory: a size only.
    pub const LOCAL: u8 = 2;
    /// Plain bytes: a scalar, a vector or a structure.
    pub const PLAIN: u8 = 3;
}

/// How `kdclSetArgument` gives its value.
pub mod value {
    /// The bytes of the argument themselves.
    pub const BYTES: u32 = 0;
    /// The id of an object, 0 for none.
    pub const OBJECT: u32 = 1;
    /// Only a size: local memory.
    pub const SIZE: u32 = 2;
    /// An address of shared virtual memory.
    pub const SVM: u32 = 3;
}

/// How `kdclQueue` and `kdclSampler` give properties.
pub mod properties_form {
    /// The values that the function without a list takes: of a queue its flags.
    pub const VALUES: u32 = 0;
    /// A list of names and values.
    pub const LIST: u32 = 1;
    /// The list is `NULL`: the object has its defaults.
    pub const NONE: u32 = 2;
}

/// How `kdclProgram` gives a program.
pub mod program {
    /// Source text in OpenCL C (`clCreateProgramWithSource`).
    pub const SOURCE: u32 = 0;
    /// Binaries: devices, lengths, bytes.
    pub const BINARY: u32 = 1;
    /// Intermediate language, such as SPIR-V (`clCreateProgramWithIL`).
    pub const IL: u32 = 2;
    /// Names of kernels built into devices: devices, text.
    pub const BUILT_IN: u32 = 3;
}

/// Longest value that a reply carries at once, in bytes; the rest is fetched by `kdclBlob`.
pub const MAX_REPLY_VALUE_BYTES: usize = 1 << 20;

/// What `kdclFetch` does with a read whose bytes lie in the worker.
pub mod fetch_mode {
    /// Fetches bytes, if the command has ended. The worker forgets the read with its last byte, or with a failure.
    pub const FETCH_NOW: u32 = 0;
    /// Waits for the command's end, and then does as [`FETCH_NOW`].
    pub const FETCH_AT_END: u32 = 1;
    /// Tells the command's state; the read stays as it is.
    pub const QUERY: u32 = 2;
    /// Waits for the command's end, and then does as [`QUERY`].
    pub const QUERY_AT_END: u32 = 3;
}

/// Whether an image lies in the memory that its message names.
pub mod in_place {
    /// The image is a copy: the program has the memory back.
    pub const COPIED: u32 = 0;
    /// The image lies in the program's memory, and the driver uses it in place.
    pub const IN_PLACE: u32 = 1;
    /// The image lies in the program's memory, and only a lack of memory can refuse another image like it.
    pub const IN_PLACE_ALWAYS: u32 = 2;
}

/// Arguments that a kernel can have, whatever a driver says.
pub const MAX_KERNEL_ARGUMENTS: u32 = 4096;
/// Buffers from this size on, in bytes, may lie in the worker's zero-copy area, from which the program reads them itself.
pub const ZERO_COPY_MIN_BYTES: u64 = 1 << 20;
/// Value of `place` when no buffer of the context lies in the zero-copy area.
pub const NO_ZERO_COPY_OFFSET: u64 = u64::MAX;
/// What `staged` says of a write whose data is in a piece of the staging area: the piece's number is added to this.
pub const STAGED_IN_PIECE: u32 = 2;
/// What `staged` says of a write whose data is in memory that both sides have: behind the extent stand its address and that
/// of a word which the worker sets to 0 when the data may change, each a `u64`. Of a buffer or an image that begins with
/// such data stand its address and its length there; it stays until the reply.
pub const STAGED_IN_HOST: u32 = u32::MAX;
/// Value of `staged` for a write whose data the driver takes out of fine-grained shared virtual memory when it is the
/// command's turn. Behind the extent stand its address, and the bytes from row to row and from slice to slice (0: no gaps),
/// each a `u64`.
pub const STAGED_IN_SVM: u32 = u32::MAX - 1;

//! The messages of an OpenCL session, and the layouts inside their bytes.
//!
//! Messages are generated from `spec/opencl-session.api`. Lists are a count and their elements. No code trusts a count beyond the
//! bytes that are there.

pub mod list;
pub mod message;
pub mod transfer_extent;

/// Ids have their object's kind above this bit, and below it a number within that kind, from 0.
pub const KIND_SHIFT: u32 = 28;

/// Kinds of objects in ids. Platforms and devices are numbered in the order of the facts.
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

/// Returns the id of an object, from its kind and number.
#[must_use]
pub fn id(kind: u32, number: u32) -> u32 {
    kind << KIND_SHIFT | number
}

/// The queries of `kdclInfo`: each selects one of the driver's query functions. `object`, and `second` where it is mentioned, are
/// the objects queried.
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
    /// `clGetEventProfilingInfo` of all parameters: numbers (`u64`), each parameter with its value, of those that the driver
    /// reports.
    pub const TIMES: u32 = 18;
    /// `clGetKernelSubGroupInfo` for the sizes of a group. The caller's buffer has this many bytes (`u64`, before the function's
    /// input); `second` is the device.
    pub const GROUP_SIZES: u32 = 19;
    /// The binaries of a program, as a list. (17 once fetched binaries one after the other; it is not used again.)
    pub const BINARIES: u32 = 20;
    /// `clGetDeviceIDs` for a type (`u64`, the input) of which the platform has no device: the driver's code.
    pub const DEVICE_TYPE: u32 = 21;
}

/// The kind of a kernel's argument, as far as the driver reports it.
pub mod argument {
    /// The driver does not report it.
    pub const UNKNOWN: u8 = 0;
    /// An object: memory, a sampler, a queue.
    pub const OBJECT: u8 = 1;
    /// Local memory: a size only.
    pub const LOCAL: u8 = 2;
    /// Plain bytes: a scalar, a vector or a structure.
    pub const PLAIN: u8 = 3;
}

/// The forms of a value in `kdclSetArgument`.
pub mod value {
    /// The bytes of the argument themselves.
    pub const BYTES: u32 = 0;
    /// The id of an object, 0 for none.
    pub const OBJECT: u32 = 1;
    /// Only a size: local memory.
    pub const LOCAL_SIZE: u32 = 2;
    /// An address of shared virtual memory.
    pub const SVM: u32 = 3;
}

/// The forms of properties in `kdclQueue` and `kdclSampler`.
pub mod properties_form {
    /// The values of the function without a list: for a queue, its flags.
    pub const VALUES: u32 = 0;
    /// A list of names and values.
    pub const LIST: u32 = 1;
    /// The list is `NULL`: the object has its defaults.
    pub const NONE: u32 = 2;
}

/// The forms of a program in `kdclProgram`.
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

/// Longest value in one reply, in bytes; `kdclBlob` fetches the rest.
pub const MAX_REPLY_VALUE_BYTES: usize = 1 << 20;

/// The action of `kdclFetch` on a read whose bytes are in the worker.
pub mod fetch_mode {
    /// Fetches bytes, if the command has ended. The worker forgets the read after its last byte, or a failure.
    pub const FETCH_NOW: u32 = 0;
    /// Waits for the command's end, and then acts like [`FETCH_NOW`].
    pub const FETCH_AT_END: u32 = 1;
    /// Returns the command's state; the read is unchanged.
    pub const QUERY: u32 = 2;
    /// Waits for the command's end, and then acts like [`QUERY`].
    pub const QUERY_AT_END: u32 = 3;
}

/// Whether an image uses the memory that its message names.
pub mod in_place {
    /// The image is a copy, and the program has its memory back.
    pub const COPIED: u32 = 0;
    /// The image lies in the program's memory, and the driver uses it in place.
    pub const IN_PLACE: u32 = 1;
    /// The image lies in the program's memory, and only a lack of memory can refuse another image like it.
    pub const IN_PLACE_ALWAYS: u32 = 2;
}

/// Most arguments of a kernel, whatever a driver reports.
pub const MAX_KERNEL_ARGUMENTS: u32 = 4096;
/// Buffers of at least this size, in bytes, may lie in the worker's zero-copy area, from which the program reads them itself.
pub const ZERO_COPY_MIN_BYTES: u64 = 1 << 20;
/// Value of `position` when no buffer of the context lies in the zero-copy area.
pub const NO_ZERO_COPY_OFFSET: u64 = u64::MAX;
/// Value of `staged` for a write whose data is in a piece of the staging area: this constant plus the piece's number.
pub const STAGED_IN_PIECE: u32 = 2;
/// Value of `staged` for a write whose data is in memory that both sides have. Behind the extent follow the data's address, and
/// the address of a word that the worker sets to 0 when the data may change, each a `u64`. For a buffer or an image created from
/// such data, the data's address and length follow there; the data stays until the reply.
pub const STAGED_IN_HOST: u32 = u32::MAX;
/// Value of `staged` for a write whose data the driver reads from fine-grained shared virtual memory when the command's turn
/// comes. Behind the extent follow the data's address, and the bytes from row to row and from slice to slice (0: no gaps), each a
/// `u64`.
pub const STAGED_IN_SVM: u32 = u32::MAX - 1;

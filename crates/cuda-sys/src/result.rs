//! Result codes of the driver API, with the names and texts that `cuGetErrorName` and `cuGetErrorString`
//! answer (read from driver 580 by asking it for every code).

use std::ffi::CStr;
use std::fmt;

/// What every function of the driver API returns: 0 for success.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
#[must_use]
pub struct CUresult(pub u32);

macro_rules! results {
    ($($code:literal $name:ident $text:literal)*) => {
        #[allow(missing_docs, reason = "the texts below describe them")]
        impl CUresult {
            $(pub const $name: Self = Self($code);)*
        }

        /// Code, name and text, in the order of the codes.
        const RESULTS: &[(u32, &CStr, &CStr)] = &[$(($code, name(concat!("CUDA_", stringify!($name), "\0")), $text),)*];
    };
}

/// The NUL-terminated bytes as C sees them; the macro above always terminates them.
const fn name(with_nul: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(with_nul.as_bytes()) {
        Ok(name) => name,
        Err(_) => c"CUDA_ERROR_UNKNOWN",
    }
}

impl CUresult {
    /// `Ok` for success, the code itself otherwise.
    ///
    /// # Errors
    ///
    /// Every code but 0.
    pub fn ok(self) -> Result<(), Self> {
        if self == Self::SUCCESS { Ok(()) } else { Err(self) }
    }

    /// The name as `cuGetErrorName` answers it; `None` for a code the driver does not know.
    pub fn name(self) -> Option<&'static CStr> {
        self.entry().map(|entry| entry.1)
    }

    /// The text as `cuGetErrorString` answers it; `None` for a code the driver does not know.
    pub fn text(self) -> Option<&'static CStr> {
        self.entry().map(|entry| entry.2)
    }

    fn entry(self) -> Option<&'static (u32, &'static CStr, &'static CStr)> {
        RESULTS.binary_search_by_key(&self.0, |entry| entry.0).ok().map(|at| &RESULTS[at])
    }
}

impl From<Result<(), Self>> for CUresult {
    fn from(result: Result<(), Self>) -> Self {
        result.err().unwrap_or(Self::SUCCESS)
    }
}

impl fmt::Debug for CUresult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for CUresult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{} ({})", name.to_string_lossy(), self.0),
            None => write!(f, "CUDA error {}", self.0),
        }
    }
}

impl std::error::Error for CUresult {}

results! {
    0 SUCCESS c"no error"
    1 ERROR_INVALID_VALUE c"invalid argument"
    2 ERROR_OUT_OF_MEMORY c"out of memory"
    3 ERROR_NOT_INITIALIZED c"initialization error"
    4 ERROR_DEINITIALIZED c"driver shutting down"
    5 ERROR_PROFILER_DISABLED c"profiler disabled while using external profiling tool"
    6 ERROR_PROFILER_NOT_INITIALIZED c"profiler not initialized: call cudaProfilerInitialize()"
    7 ERROR_PROFILER_ALREADY_STARTED c"profiler already started"
    8 ERROR_PROFILER_ALREADY_STOPPED c"profiler already stopped"
    34 ERROR_STUB_LIBRARY c"CUDA driver is a stub library"
    36 ERROR_CALL_REQUIRES_NEWER_DRIVER c"API call is not supported in the installed CUDA driver"
    46 ERROR_DEVICE_UNAVAILABLE c"CUDA-capable device(s) is/are busy or unavailable"
    100 ERROR_NO_DEVICE c"no CUDA-capable device is detected"
    101 ERROR_INVALID_DEVICE c"invalid device ordinal"
    102 ERROR_DEVICE_NOT_LICENSED c"device doesn't have valid Grid license"
    200 ERROR_INVALID_IMAGE c"device kernel image is invalid"
    201 ERROR_INVALID_CONTEXT c"invalid device context"
    202 ERROR_CONTEXT_ALREADY_CURRENT c"context already current"
    205 ERROR_MAP_FAILED c"mapping of buffer object failed"
    206 ERROR_UNMAP_FAILED c"unmapping of buffer object failed"
    207 ERROR_ARRAY_IS_MAPPED c"array is mapped"
    208 ERROR_ALREADY_MAPPED c"resource already mapped"
    209 ERROR_NO_BINARY_FOR_GPU c"no kernel image is available for execution on the device"
    210 ERROR_ALREADY_ACQUIRED c"resource already acquired"
    211 ERROR_NOT_MAPPED c"resource not mapped"
    212 ERROR_NOT_MAPPED_AS_ARRAY c"resource not mapped as array"
    213 ERROR_NOT_MAPPED_AS_POINTER c"resource not mapped as pointer"
    214 ERROR_ECC_UNCORRECTABLE c"uncorrectable ECC error encountered"
    215 ERROR_UNSUPPORTED_LIMIT c"limit is not supported on this architecture"
    216 ERROR_CONTEXT_ALREADY_IN_USE c"exclusive-thread device already in use by a different thread"
    217 ERROR_PEER_ACCESS_UNSUPPORTED c"peer access is not supported between these two devices"
    218 ERROR_INVALID_PTX c"a PTX JIT compilation failed"
    219 ERROR_INVALID_GRAPHICS_CONTEXT c"invalid OpenGL or DirectX context"
    220 ERROR_NVLINK_UNCORRECTABLE c"uncorrectable NVLink error detected during the execution"
    221 ERROR_JIT_COMPILER_NOT_FOUND c"PTX JIT compiler library not found"
    222 ERROR_UNSUPPORTED_PTX_VERSION c"the provided PTX was compiled with an unsupported toolchain."
    223 ERROR_JIT_COMPILATION_DISABLED c"PTX JIT compilation was disabled"
    224 ERROR_UNSUPPORTED_EXEC_AFFINITY c"the provided execution affinity is not supported"
    225 ERROR_UNSUPPORTED_DEVSIDE_SYNC c"the provided PTX contains unsupported call to cudaDeviceSynchronize"
    226 ERROR_CONTAINED c"Invalid access of peer GPU memory over nvlink or a hardware error"
    300 ERROR_INVALID_SOURCE c"device kernel image is invalid"
    301 ERROR_FILE_NOT_FOUND c"file not found"
    302 ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND c"shared object symbol not found"
    303 ERROR_SHARED_OBJECT_INIT_FAILED c"shared object initialization failed"
    304 ERROR_OPERATING_SYSTEM c"OS call failed or operation not supported on this OS"
    400 ERROR_INVALID_HANDLE c"invalid resource handle"
    401 ERROR_ILLEGAL_STATE c"the operation cannot be performed in the present state"
    402 ERROR_LOSSY_QUERY c"attempted introspection would be semantically lossy"
    500 ERROR_NOT_FOUND c"named symbol not found"
    600 ERROR_NOT_READY c"device not ready"
    700 ERROR_ILLEGAL_ADDRESS c"an illegal memory access was encountered"
    701 ERROR_LAUNCH_OUT_OF_RESOURCES c"too many resources requested for launch"
    702 ERROR_LAUNCH_TIMEOUT c"the launch timed out and was terminated"
    703 ERROR_LAUNCH_INCOMPATIBLE_TEXTURING c"launch uses incompatible texturing mode"
    704 ERROR_PEER_ACCESS_ALREADY_ENABLED c"peer access is already enabled"
    705 ERROR_PEER_ACCESS_NOT_ENABLED c"peer access has not been enabled"
    708 ERROR_PRIMARY_CONTEXT_ACTIVE c"cannot set while device is active in this process"
    709 ERROR_CONTEXT_IS_DESTROYED c"context is destroyed"
    710 ERROR_ASSERT c"device-side assert triggered"
    711 ERROR_TOO_MANY_PEERS c"peer mapping resources exhausted"
    712 ERROR_HOST_MEMORY_ALREADY_REGISTERED c"part or all of the requested memory range is already mapped"
    713 ERROR_HOST_MEMORY_NOT_REGISTERED c"pointer does not correspond to a registered memory region"
    714 ERROR_HARDWARE_STACK_ERROR c"hardware stack error"
    715 ERROR_ILLEGAL_INSTRUCTION c"an illegal instruction was encountered"
    716 ERROR_MISALIGNED_ADDRESS c"misaligned address"
    717 ERROR_INVALID_ADDRESS_SPACE c"operation not supported on global/shared address space"
    718 ERROR_INVALID_PC c"invalid program counter"
    719 ERROR_LAUNCH_FAILED c"unspecified launch failure"
    720 ERROR_COOPERATIVE_LAUNCH_TOO_LARGE c"too many blocks in cooperative launch"
    721 ERROR_TENSOR_MEMORY_LEAK c"tensor memory not completely freed"
    800 ERROR_NOT_PERMITTED c"operation not permitted"
    801 ERROR_NOT_SUPPORTED c"operation not supported"
    802 ERROR_SYSTEM_NOT_READY c"system not yet initialized"
    803 ERROR_SYSTEM_DRIVER_MISMATCH c"system has unsupported display driver / cuda driver combination"
    804 ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE c"forward compatibility was attempted on non supported HW"
    805 ERROR_MPS_CONNECTION_FAILED c"MPS client failed to connect to the MPS control daemon or the MPS server"
    806 ERROR_MPS_RPC_FAILURE c"the remote procedural call between the MPS server and the MPS client failed"
    807 ERROR_MPS_SERVER_NOT_READY c"MPS server is not ready to accept new MPS client requests"
    808 ERROR_MPS_MAX_CLIENTS_REACHED c"the hardware resources required to create MPS client have been exhausted"
    809 ERROR_MPS_MAX_CONNECTIONS_REACHED c"the hardware resources required to support device connections have been exhausted"
    810 ERROR_MPS_CLIENT_TERMINATED c"the MPS client has been terminated by the server"
    811 ERROR_CDP_NOT_SUPPORTED c"is using CUDA Dynamic Parallelism, but the current configuration, like MPS, does not support it"
    812 ERROR_CDP_VERSION_MISMATCH c"unsupported interaction between different versions of CUDA Dynamic Parallelism"
    900 ERROR_STREAM_CAPTURE_UNSUPPORTED c"operation not permitted when stream is capturing"
    901 ERROR_STREAM_CAPTURE_INVALIDATED c"operation failed due to a previous error during capture"
    902 ERROR_STREAM_CAPTURE_MERGE c"operation would result in a merge of separate capture sequences"
    903 ERROR_STREAM_CAPTURE_UNMATCHED c"capture was not ended in the same stream as it began"
    904 ERROR_STREAM_CAPTURE_UNJOINED c"capturing stream has unjoined work"
    905 ERROR_STREAM_CAPTURE_ISOLATION c"dependency created on uncaptured work in another stream"
    906 ERROR_STREAM_CAPTURE_IMPLICIT c"operation would make the legacy stream depend on a capturing blocking stream"
    907 ERROR_CAPTURED_EVENT c"operation not permitted on an event last recorded in a capturing stream"
    908 ERROR_STREAM_CAPTURE_WRONG_THREAD c"attempt to terminate a thread-local capture sequence from another thread"
    909 ERROR_TIMEOUT c"wait operation timed out"
    910 ERROR_GRAPH_EXEC_UPDATE_FAILURE c"the graph update was not performed because it included changes which violated constraints specific to instantiated graph update"
    911 ERROR_EXTERNAL_DEVICE c"an async error has occured in external entity outside of CUDA"
    912 ERROR_INVALID_CLUSTER_SIZE c"a kernel launch error has occurred due to cluster misconfiguration"
    913 ERROR_FUNCTION_NOT_LOADED c"the function handle is not loaded when calling an API that requires a loaded function"
    914 ERROR_INVALID_RESOURCE_TYPE c"one or more resources passed in are not valid resource types for the operation"
    915 ERROR_INVALID_RESOURCE_CONFIGURATION c"one or more resources are insufficient or non-applicable for the operation"
    916 ERROR_KEY_ROTATION c"an error happened during the key rotation sequence"
    999 ERROR_UNKNOWN c"unknown error"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_the_names_and_texts_of_the_driver() {
        assert_eq!(CUresult::SUCCESS.name(), Some(c"CUDA_SUCCESS"));
        assert_eq!(CUresult::ERROR_ILLEGAL_ADDRESS.name(), Some(c"CUDA_ERROR_ILLEGAL_ADDRESS"));
        assert_eq!(CUresult(700).text(), Some(c"an illegal memory access was encountered"));
        assert_eq!(CUresult(12345).name(), None);
    }

    #[test]
    fn the_table_is_sorted_for_binary_search() {
        assert!(RESULTS.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }
}

//! Codes of the runtime API (`cudaError_t`).

/// `cudaSuccess`
pub(crate) const CUDA_SUCCESS: u32 = 0;
/// `cudaErrorInvalidValue`
pub(crate) const INVALID_VALUE: u32 = 1;
/// `cudaErrorMemoryAllocation`
pub(crate) const MEMORY_ALLOCATION: u32 = 2;
/// `cudaErrorInvalidConfiguration`
pub(crate) const INVALID_CONFIGURATION: u32 = 9;
/// `cudaErrorInvalidMemcpyDirection`
pub(crate) const INVALID_MEMCPY_DIRECTION: u32 = 21;
/// `cudaErrorLaunchPendingCountExceeded`
pub(crate) const PENDING_COUNT_EXCEEDED: u32 = 69;
/// `cudaErrorInvalidDeviceFunction`
pub(crate) const INVALID_DEVICE_FUNCTION: u32 = 98;
/// `cudaErrorInvalidDevice`
pub(crate) const INVALID_DEVICE: u32 = 101;
/// `cudaErrorInvalidResourceHandle`
pub(crate) const INVALID_RESOURCE_HANDLE: u32 = 400;
/// `cudaErrorUnsupportedLimit`
pub(crate) const UNSUPPORTED_LIMIT: u32 = 215;

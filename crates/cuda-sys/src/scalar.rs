//! Numbers of the driver API: addresses, ordinals and the many enumerations, all of which C passes as
//! `unsigned int` and any of which a newer program may extend.

/// An address of device memory; under unified addressing, of any memory the device reaches.
pub type CUdeviceptr = u64;
/// Ordinal of a device.
pub type CUdevice = i32;
/// Handle of a physical allocation (`cuMemCreate`).
pub type CUmemGenericAllocationHandle = u64;
/// A texture object, as kernels see it.
pub type CUtexObject = u64;
/// A surface object, as kernels see it.
pub type CUsurfObject = u64;
/// Handle of a conditional graph node, as kernels see it.
pub type CUgraphConditionalHandle = u64;
/// Position in the error log.
pub type CUlogIterator = u32;

macro_rules! enumerations {
    ($($name:ident)*) => {$(
        #[doc = concat!("Enumeration `", stringify!($name), "`; values outside the header's pass through.")]
        pub type $name = u32;
    )*};
}

enumerations! {
    CUGLDeviceList CUaddress_mode CUarray_format CUatomicOperation CUcoredumpSettings CUdevResourceType
    CUdevice_P2PAttribute CUdevice_attribute CUdriverProcAddressQueryResult CUexecAffinityType CUfilter_mode
    CUflushGPUDirectRDMAWritesScope CUflushGPUDirectRDMAWritesTarget CUfunc_cache CUfunctionLoadingState
    CUfunction_attribute CUgraphExecUpdateResult CUgraphMem_attribute CUgraphNodeType CUjitInputType CUjit_option
    CUkernelNodeAttrID CUlibraryOption CUlimit CUmemAccess_flags CUmemAllocationGranularity_flags
    CUmemAllocationHandleType CUmemAllocationType CUmemPool_attribute CUmemRangeHandleType CUmem_advise
    CUmem_range_attribute CUmoduleLoadingMode CUmulticastGranularity_flags CUoutput_mode CUpointer_attribute
    CUprocessState CUsharedconfig CUstreamAttrID CUstreamCaptureMode CUstreamCaptureStatus CUtensorMapDataType
    CUtensorMapFloatOOBfill CUtensorMapIm2ColWideMode CUtensorMapInterleave CUtensorMapL2promotion
    CUtensorMapSwizzle
}

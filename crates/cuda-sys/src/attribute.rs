//! Constants of enumerations that code here compares with, grouped by enumeration.

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
    /// Device attributes, a `CUdevice_attribute` each.
    device_attribute {
        MAX_THREADS_PER_BLOCK = 1, MAX_BLOCK_DIM_X = 2, MAX_BLOCK_DIM_Y = 3, MAX_BLOCK_DIM_Z = 4, MAX_GRID_DIM_X = 5,
        MAX_GRID_DIM_Y = 6, MAX_GRID_DIM_Z = 7, MAX_SHARED_MEMORY_PER_BLOCK = 8, TOTAL_CONSTANT_MEMORY = 9,
        WARP_SIZE = 10, MAX_PITCH = 11, MAX_REGISTERS_PER_BLOCK = 12, CLOCK_RATE = 13, TEXTURE_ALIGNMENT = 14,
        MULTIPROCESSOR_COUNT = 16, CAN_MAP_HOST_MEMORY = 19, PCI_BUS_ID = 33, PCI_DEVICE_ID = 34,
        MAX_THREADS_PER_MULTIPROCESSOR = 39, UNIFIED_ADDRESSING = 41, PCI_DOMAIN_ID = 50,
        COMPUTE_CAPABILITY_MAJOR = 75, COMPUTE_CAPABILITY_MINOR = 76, MAX_SHARED_MEMORY_PER_MULTIPROCESSOR = 81,
        MAX_REGISTERS_PER_MULTIPROCESSOR = 82, MANAGED_MEMORY = 83, CONCURRENT_MANAGED_ACCESS = 89, COOPERATIVE_LAUNCH = 95,
        MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97, HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 103, MAX_BLOCKS_PER_MULTIPROCESSOR = 106, RESERVED_SHARED_MEMORY_PER_BLOCK = 111,
        MEMORY_POOLS_SUPPORTED = 115,
    }
    /// Attributes of functions and kernels, a `CUfunction_attribute` each.
    function_attribute {
        MAX_THREADS_PER_BLOCK = 0, SHARED_SIZE_BYTES = 1, CONST_SIZE_BYTES = 2, LOCAL_SIZE_BYTES = 3, NUM_REGS = 4,
        PTX_VERSION = 5, BINARY_VERSION = 6, CACHE_MODE_CA = 7, MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
        PREFERRED_SHARED_MEMORY_CARVEOUT = 9, CLUSTER_SIZE_MUST_BE_SET = 10, REQUIRED_CLUSTER_WIDTH = 11,
        REQUIRED_CLUSTER_HEIGHT = 12, REQUIRED_CLUSTER_DEPTH = 13, NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 14,
        CLUSTER_SCHEDULING_POLICY_PREFERENCE = 15,
    }
    /// Attributes of pointers, a `CUpointer_attribute` each.
    pointer_attribute {
        CONTEXT = 1, MEMORY_TYPE = 2, DEVICE_POINTER = 3, HOST_POINTER = 4, P2P_TOKENS = 5, SYNC_MEMOPS = 6,
        BUFFER_ID = 7, IS_MANAGED = 8, DEVICE_ORDINAL = 9, IS_LEGACY_CUDA_IPC_CAPABLE = 10, RANGE_START_ADDR = 11,
        RANGE_SIZE = 12, MAPPED = 13, ALLOWED_HANDLE_TYPES = 14, IS_GPU_DIRECT_RDMA_CAPABLE = 15, ACCESS_FLAGS = 16,
        MEMPOOL_HANDLE = 17, MAPPING_SIZE = 18, MAPPING_BASE_ADDR = 19, MEMORY_BLOCK_ID = 20,
        IS_HW_DECOMPRESS_CAPABLE = 21,
    }
    /// Kinds of memory, a `CUmemorytype` each.
    memory_type { HOST = 1, DEVICE = 2, ARRAY = 3, UNIFIED = 4 }
    /// Limits of a context, a `CUlimit` each.
    limit {
        STACK_SIZE = 0, PRINTF_FIFO_SIZE = 1, MALLOC_HEAP_SIZE = 2, DEV_RUNTIME_SYNC_DEPTH = 3,
        DEV_RUNTIME_PENDING_LAUNCH_COUNT = 4, MAX_L2_FETCH_GRANULARITY = 5, PERSISTING_L2_CACHE_SIZE = 6,
    }
    /// Options of the JIT compiler and linker, a `CUjit_option` each.
    jit_option {
        MAX_REGISTERS = 0, THREADS_PER_BLOCK = 1, WALL_TIME = 2, INFO_LOG_BUFFER = 3, INFO_LOG_BUFFER_SIZE_BYTES = 4,
        ERROR_LOG_BUFFER = 5, ERROR_LOG_BUFFER_SIZE_BYTES = 6, OPTIMIZATION_LEVEL = 7, TARGET_FROM_CUCONTEXT = 8,
        TARGET = 9, FALLBACK_STRATEGY = 10, GENERATE_DEBUG_INFO = 11, LOG_VERBOSE = 12, GENERATE_LINE_INFO = 13,
        CACHE_MODE = 14, GLOBAL_SYMBOL_NAMES = 17, GLOBAL_SYMBOL_ADDRESSES = 18, GLOBAL_SYMBOL_COUNT = 19,
    }
    /// Flags of `cuStreamCreate`, a bit each.
    stream_flags { DEFAULT = 0, NON_BLOCKING = 1 }
    /// Flags of `cuEventCreate`, a bit each.
    event_flags { DEFAULT = 0, BLOCKING_SYNC = 1, DISABLE_TIMING = 2, INTERPROCESS = 4 }
    /// Flags of `cuMemHostAlloc`, a bit each.
    host_alloc_flags { PORTABLE = 1, DEVICEMAP = 2, WRITECOMBINED = 4 }
    /// Flags of `cuMemHostRegister`, a bit each.
    host_register_flags { PORTABLE = 1, DEVICEMAP = 2, IOMEMORY = 4, READ_ONLY = 8 }
    /// Markers of the `extra` parameter list of a launch.
    launch_param { END = 0, BUFFER_POINTER = 1, BUFFER_SIZE = 2 }
    /// Kinds of places that memory can lie at, a `CUmemLocationType` each.
    location_type { NONE = 0, DEVICE = 1, HOST = 2, HOST_NUMA = 3, HOST_NUMA_CURRENT = 4 }
    /// Kinds of allocations, a `CUmemAllocationType` each.
    allocation_type { PINNED = 1, MANAGED = 2 }
    /// Attributes of memory pools, a `CUmemPool_attribute` each.
    pool_attribute {
        REUSE_FOLLOW_EVENT_DEPENDENCIES = 1, REUSE_ALLOW_OPPORTUNISTIC = 2, REUSE_ALLOW_INTERNAL_DEPENDENCIES = 3,
        RELEASE_THRESHOLD = 4, RESERVED_MEM_CURRENT = 5, RESERVED_MEM_HIGH = 6, USED_MEM_CURRENT = 7, USED_MEM_HIGH = 8,
    }
    /// Attributes of ranges of managed memory, a `CUmem_range_attribute` each.
    range_attribute {
        READ_MOSTLY = 1, PREFERRED_LOCATION = 2, ACCESSED_BY = 3, LAST_PREFETCH_LOCATION = 4,
        PREFERRED_LOCATION_TYPE = 5, PREFERRED_LOCATION_ID = 6, LAST_PREFETCH_LOCATION_TYPE = 7,
        LAST_PREFETCH_LOCATION_ID = 8,
    }
    /// Advice about managed memory, a `CUmem_advise` each.
    advice {
        SET_READ_MOSTLY = 1, UNSET_READ_MOSTLY = 2, SET_PREFERRED_LOCATION = 3, UNSET_PREFERRED_LOCATION = 4,
        SET_ACCESSED_BY = 5, UNSET_ACCESSED_BY = 6,
    }
    /// Flags of `cuMemAllocManaged` and `cuStreamAttachMemAsync`.
    attach_flags { GLOBAL = 1, HOST = 2, SINGLE = 4 }
    /// When a copy may read its source, a `CUmemcpySrcAccessOrder` each.
    access_order { STREAM = 1, DURING_API_CALL = 2, ANY = 3 }
    /// Words of a `CUarrayMapInfo`: `CUresourcetype`, `CUarraySparseSubresourceType`, `CUmemOperationType` and
    /// `CUmemHandleType`.
    array_map {
        ARRAY = 0, MIPMAPPED_ARRAY = 1, SPARSE_LEVEL = 0, MIPTAIL = 1, MAP = 1, UNMAP = 2, GENERIC = 0,
    }
    /// Kinds of input of the JIT linker, a `CUjitInputType` each.
    jit_input { CUBIN = 0, PTX = 1, FATBINARY = 2, OBJECT = 3, LIBRARY = 4, NVVM = 5 }
    /// Rights of a device to mapped memory, a `CUmemAccess_flags` each.
    access_flags { NONE = 0, READ = 1, READ_WRITE = 3 }
    /// Results of `cuGetProcAddress`, a `CUdriverProcAddressQueryResult` each.
    proc_address_result { SUCCESS = 0, SYMBOL_NOT_FOUND = 1, VERSION_NOT_SUFFICIENT = 2 }
}

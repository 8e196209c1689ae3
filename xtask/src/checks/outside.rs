//! Words that pages name in backticks and that are not of this tree, each with its origin.
//!
//! `cargo xtask pages` names a row that no page needs any more.

/// Symbols: constants, functions, settings, keys.
pub(crate) const OUTSIDE_SYMBOLS: &[(&str, &str)] = &[
    ("vX", "a tag of git, with a placeholder"),
    ("ASAN_OPTIONS", "AddressSanitizer"),
    ("allocator_may_return_null", "AddressSanitizer"),
    ("detect_leaks", "AddressSanitizer"),
    ("max_allocation_size_mb", "AddressSanitizer"),
    ("NVIDIA_TF32_OVERRIDE", "cuBLAS"),
    ("GetRestoreThreadId", "cuda-checkpoint"),
    ("CUDA_ERROR_MPS_MAX_CLIENTS_REACHED", "cuda.h"),
    ("CUDA_ERROR_MPS_RPC_FAILURE", "cuda.h"),
    ("CUDA_ERROR_SYSTEM_NOT_READY", "cuda.h"),
    ("CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH", "cuda.h"),
    ("CU_JIT_THREADS_PER_BLOCK", "cuda.h"),
    ("len_control", "libFuzzer"),
    ("max_total_time", "libFuzzer"),
    ("CAP_NET_ADMIN", "Linux"),
    ("F_SEAL_GROW", "Linux"),
    ("F_SEAL_SHRINK", "Linux"),
    ("MADV_DONTFORK", "Linux"),
    ("MPOL_LOCAL", "Linux"),
    ("O_APPEND", "Linux"),
    ("PAGEMAP_SCAN", "Linux"),
    ("SCHED_FLAG_RESET_ON_FORK", "Linux"),
    ("SOCK_SEQPACKET", "Linux"),
    ("TCP_NODELAY", "Linux"),
    ("ioprio_set", "Linux"),
    ("mq_open", "Linux"),
    ("process_vm_writev", "Linux"),
    ("set_mempolicy_home_node", "Linux"),
    ("ncclCommAbort", "NCCL"),
    ("CL_DEVICE_SVM_FINE_GRAIN_SYSTEM", "OpenCL"),
    ("texmode_independent", "PTX"),
    ("AmbientCapabilities", "systemd"),
    ("TLS_AES_128_GCM_SHA256", "TLS 1.3 (RFC 8446)"),
    ("TLS_CHACHA20_POLY1305_SHA256", "TLS 1.3 (RFC 8446)"),
];

/// Long flags of other programs, without their hyphens.
pub(crate) const OUTSIDE_FLAGS: &[(&str, &str)] = &[
    ("cap-add", "Docker and Podman"),
    ("gpu-architecture", "NVRTC"),
    ("ipc", "unshare"),
    ("mount", "unshare"),
    ("noprefix", "Open MPI's mpirun"),
    ("oversubscribe", "Open MPI's mpirun"),
    ("privileged", "Docker and Podman"),
    ("security-opt", "Docker and Podman"),
    ("signal", "Slurm"),
    ("test", "cargo"),
    ("unprivileged", "CRIU"),
];

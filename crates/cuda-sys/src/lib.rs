//! C types and constants of the CUDA driver ABI.

//! libcuda.so.1 for programs under Katydid.

//! Opens a CUDA driver library and its table of functions.

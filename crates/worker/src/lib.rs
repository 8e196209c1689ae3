//! The process that owns the GPU for one program.

//! `libcuda.so.1` for programs under Katydid: every symbol of the driver API, answered here or by the worker.
//!
//! The exported symbols are generated from `spec/cuda.api` (`ffi::symbols`). Each passes `ffi::exported_call`, which stops panics
//! and refuses calls that come too early or too late. Lines of the spec name the functions of the other modules. These
//! validate all arguments, with the codes of NVIDIA's driver. So queued work can only fail for reasons that CUDA also
//! reports late.
//!
//! | module | what it holds |
//! |---|---|
//! | `ffi` | the exported symbols, the guard of each call, handles |
//! | `process` | the session, errors, traces, settings, checkpoints |
//! | `context` | devices, contexts, the stack of contexts of each thread |
//! | `code` | modules, libraries, functions, kernels, variables |
//! | `launch` | launches of kernels and host functions |
//! | `memory` | device, pinned, managed, virtual and shared memory, pools |
//! | `copy` | copies and fills |
//! | `texture` | arrays, textures, surfaces, tensor maps |
//! | `sync` | streams and events |
//! | `graph` | graphs and stream capture |
//!
//! Modules use each other in one direction. Lowest are the arguments and tables of `ffi`, and the session. Above them are
//! the records of objects, each with its own table; then the tables of memory; then waiting. Functions named by lines of the
//! spec come last, below `ffi::exported_call` and `process::start`.

mod code;
mod context;
mod copy;
mod ffi;
mod graph;
mod launch;
mod memory;
mod process;
mod sync;
mod texture;

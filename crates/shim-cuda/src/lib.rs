//! `libcuda.so.1` for programs under Katydid: every symbol of the driver API, answered here or by the worker.
//!
//! The exported symbols are generated from `spec/cuda.api` (`entry`); each passes `border`, which stops panics and
//! refuses calls that come too early or too late. Lines of the spec name the functions of the other modules. The rule
//! they keep: arguments are validated here, with the codes that NVIDIA's driver gives, so that what is queued can only
//! fail for reasons that CUDA reports late as well.
//!
//! | modules | what they answer |
//! |---|---|
//! | `session`, `border`, `handle` | start, the way in, what handles stand for |
//! | `device`, `capability`, `context`, `current` | facts, kept since the start; each thread's contexts |
//! | `module`, `library`, `function`, `kernel`, `code`, `image`, `jit` | code and what is known of it |
//! | `launch`, `occupancy`, `upcall`, `behind` | running it |
//! | `memory`, `virtual_memory`, `ipc`, `share`, `host_memory`, `pinned`, `pointer`, `copy`, `copy_rows`, `fill`, `transfer` | memory |
//! | `stream`, `stream_attribute`, `stream_value`, `event` | order |
//! | `array`, `array_copy`, `texture`, `reference`, `surface_reference` | arrays, textures, surfaces |
//! | `threads`, `error`, `execution`, `tensor_map`, `export_table`, `proc_address`, `profiler`, `tracing` | the rest |

mod array;
mod array_copy;
mod array_map;
mod behind;
mod border;
mod capability;
mod clusters;
mod code;
mod context;
mod context_event;
mod copy;
mod copy_batch;
mod copy_rows;
mod coredump;
mod current;
mod device;
mod entry;
mod environment;
mod error;
mod error_log;
mod event;
mod execution;
mod export_table;
mod fill;
mod function;
mod gpu_time;
mod graph;
mod green;
mod handle;
mod host_memory;
mod idle;
mod image;
mod ipc;
mod jit;
mod kernel;
mod launch;
mod library;
mod link;
mod managed;
mod memory;
mod module;
mod occupancy;
mod old_launch;
mod packed;
mod pinned;
mod pointer;
mod pool;
mod prefetch;
mod proc_address;
mod process_checkpoint;
mod profiler;
mod pull;
mod reference;
mod registered;
mod session;
mod share;
mod stream;
mod stream_attribute;
mod stream_value;
mod surface_reference;
mod tensor_map;
mod texture;
mod tracing;
mod transfer;
mod upcall;
mod variable;
mod virtual_memory;

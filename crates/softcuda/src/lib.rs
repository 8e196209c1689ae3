//! A CUDA driver library whose device is the CPU.
//!
//! Programs and Katydid's worker load it as `libcuda.so.1`. `symbols` (generated) exports every symbol, and passes each call to
//! `ffi`. `api` holds the implemented functions, each a few lines over the core:
//!
//! | module | what it holds |
//! |---|---|
//! | `process` | devices and their attributes, settings, handles, Katydid's interface beyond CUDA (`checkpoint_api`) |
//! | `context` | contexts, primary ones, green ones, the stack of contexts of each thread |
//! | `memory` | pages, address space, allocations, pools, managed and virtual memory, memory of other processes |
//! | `texture` | arrays, textures, surfaces, tensor maps |
//! | `sync` | streams, events, the executor of queued work |
//! | `copy` | copies and fills |
//! | `graphs` | graphs and stream capture |
//! | `code` | modules, libraries, functions, launches, occupancy |
//!
//! Modules use each other in one direction. From the bottom up:
//!
//! 1. the C interface, handles, settings, the state of the process (`ffi`, `process`);
//! 2. pages, heaps, the address space, memory of a device, devices (`memory::space`, `process::device`);
//! 3. a context without its streams, jobs, streams, a context with them (`context::state`, `sync::stream`);
//! 4. contexts, current contexts and streams by handle (`context::contexts`, `context::stack`, `sync::streams`), events;
//! 5. pools and the other memory of programs, arrays and textures;
//! 6. functions, modules, libraries, launches, then graphs that run them;
//! 7. copies, fills and waits, which streams under capture take into a graph (`graphs::capture`);
//! 8. the end of a context (`context::teardown`), primary and green contexts, `cuInit`, `api`.
//!
//! The rule: no argument of a program may crash the process, except host pointers on which the real driver would crash too.
//! Device addresses are host addresses, and each is looked up before it is touched.

#![allow(non_snake_case, reason = "functions of the driver API keep the vendor's names")]

mod api;
#[cfg(test)]
mod behaviour;
mod code;
mod context;
mod copy;
mod ffi;
mod graphs;
mod memory;
mod process;
mod symbols;
mod sync;
mod texture;

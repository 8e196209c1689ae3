//! A CUDA driver library whose device is the CPU.
//!
//! Programs and Katydid's worker load it as `libcuda.so.1`. `symbols` (generated) exports every symbol, `ffi` is what each
//! of them passes, and `api` holds the functions that are implemented, each a few lines over the core:
//!
//! | module | what it holds |
//! |---|---|
//! | `process` | devices and their attributes, settings, handles, what Katydid asks beyond CUDA (`checkpoint_api`) |
//! | `context` | contexts, primary ones, green ones, the stack of contexts of each thread |
//! | `memory` | pages, address space, allocations, pools, managed and virtual memory, memory of other processes |
//! | `texture` | arrays, textures, surfaces, tensor maps |
//! | `sync` | streams, events, the executor of what is queued |
//! | `copy` | copies and fills |
//! | `graphs` | graphs and stream capture |
//! | `code` | modules, libraries, functions, launches, occupancy |
//!
//! The rule: nothing a program passes in may crash the process, other than host pointers that the real driver would
//! crash on as well. Device addresses are host addresses, and every one of them is looked up before it is touched.

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

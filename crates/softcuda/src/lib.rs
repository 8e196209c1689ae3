//! A CUDA driver library whose device is the CPU.
//!
//! Programs and Katydid's worker load it as `libcuda.so.1`. `entry` (generated) exports every symbol; `api` holds the
//! functions that are implemented, each a few lines over the core:
//!
//! | part | files |
//! |---|---|
//! | process and devices | `process`, `settings`, `device`, `attributes`, `facts`, `proc_address` |
//! | contexts | `context`, `primary`, `current`, `limits` |
//! | memory | `pages`, `heap`, `space`, `memory`, `pool`, `managed`, `physical`, `vmm`, `host_memory`, `pointer` |
//! | textures | `array`, `volume`, `texture` |
//! | work | `stream`, `executor`, `hold`, `job`, `event`, `transfer`, `copy`, `plane`, `wait_value` |
//! | graphs | `graphs` |
//! | code | `image`, `jit`, `linker`, `module`, `library`, `function`, `launch`, `params`, `occupancy`, `output` |
//!
//! Besides CUDA, `private` lets Katydid stop kernels in the middle and take them along.
//!
//! The rule: nothing a program passes in may crash the process, other than host pointers that the real driver would
//! crash on as well. Device addresses are host addresses, and every one of them is looked up before it is touched.

#![allow(non_snake_case, reason = "functions of the driver API keep the vendor's names")]

mod api;
mod array;
mod attributes;
#[cfg(test)]
mod behaviour;
mod border;
mod clusters;
mod context;
mod copy;
mod current;
mod device;
mod device_heap;
mod entry;
mod event;
mod executor;
mod facts;
mod function;
mod graphs;
mod green;
mod handles;
mod heap;
mod hold;
mod host_memory;
mod image;
mod ipc;
mod jit;
mod job;
mod launch;
mod library;
mod limits;
mod linker;
mod managed;
mod memory;
mod module;
mod neighbours;
mod occupancy;
mod output;
mod pages;
mod params;
mod physical;
mod plane;
mod pointer;
mod pool;
mod primary;
mod private;
mod proc_address;
mod process;
mod reference;
mod settings;
mod shared_marks;
mod space;
mod sparse;
mod stream;
mod stream_attributes;
mod tensor_map;
mod texture;
mod transfer;
mod vmm;
mod volume;
mod wait_value;

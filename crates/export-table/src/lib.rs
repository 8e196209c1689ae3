//! The private tables behind `cuGetExportTable`, shared by the shim and by softcuda.
//!
//! NVIDIA's runtime and libraries reach parts of the driver through tables of unnamed function pointers. This crate has the
//! tables that must exist, and answers every slot in the calling process: from the embedding library's answers
//! ([`DriverFacts`]), the context-local storage here, and NVRTC's cache of compilations on disk.
//!
//! A table is static data. Its address and the addresses in it are part of the integrity digest, so nothing here may be
//! built at run time, and a known id gives the same pointer every time, before `cuInit` too.

mod catalogue;
mod checks;
mod compile_cache;
mod context_storage;
mod cudart;
mod digest;
mod facts;
mod ffi;
mod hooks;
mod integrity;
mod lookup;
mod nvrtc_cache;
mod sm_map;
mod storage;
mod table;
mod thread_context;
mod tools_context;
mod tools_module;
mod unimplemented;

pub use catalogue::{Id, title};
pub use digest::{Header, digest};
pub use facts::{ContextState, DeviceIdentity, DriverFacts, Handle, install};
pub use ffi::Status;
pub use ffi::status;
pub use lookup::{get, lookup};
pub use storage::context_gone;

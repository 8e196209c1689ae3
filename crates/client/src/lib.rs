//! The program's side of a session, shared by the shims: connection, handle records, cached facts, tables of memory.
//!
//! No code here knows a function of an API; the shims build those from these parts.
//!
//! - [`session`] carries messages for any API whose codes [`session::api_code`] describes; [`connect`] opens it as
//!   [`environment`] says.
//! - [`ffi`] has helpers for exported symbols. [`life`] decides what fork and exit allow, [`fork`] what children get.
//! - [`slab`] makes handles, [`stack`] keeps a thread's contexts, [`memory`] allocates addresses, [`regions`] knows what they
//!   belong to, and [`memory::shared_pages`] are host memory of both sides.
//! - [`compression`] compresses bulk. [`upcalls`] are functions that the worker calls.
//! - [`trace`] records calls for `katydid trace`. [`threads`] are the shim's own threads in the program.
//! - [`job`] serves the program's supervisor, [`session::session_mark`] shows it that there is a session, and
//!   [`job::process_request`] sends supervisors requests about other programs.

pub mod cache;
pub mod compression;
pub mod connect;
pub mod environment;
pub mod ffi;
pub mod fork;
pub mod job;
pub mod life;
pub mod memory;
pub mod output;
pub mod regions;
pub mod session;
pub mod slab;
pub mod stack;
pub mod threads;
pub mod trace;
pub mod upcalls;
pub mod visible;

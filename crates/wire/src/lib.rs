//! Messages and frames between program and worker: bytes in, typed values out, no I/O and no `unsafe`.
//!
//! [`handshake`] opens a session, and [`frame`] carries it. [`message`] has the contents of frames (generated from the spec),
//! [`facts`] the worker's facts about devices, and [`tensor_map`], [`texture`] and [`mod@reference`] the arguments of one family
//! of functions each. Beside the frames there are two smaller protocols, [`job`] and [`companion`], by which a job is held, saved
//! and resumed. `docs/reference/wire-protocol.md` describes all of it to the byte.

pub mod build_note;
pub mod codec;
pub mod companion;
mod descriptors;
pub mod envelope;
pub mod facts;
pub mod frame;
pub mod handshake;
pub mod job;
pub mod key;
pub mod message;
pub mod note;
pub mod nvml;
pub mod opencl;
pub mod printable;
pub mod ranges;
pub mod sharing;

pub use descriptors::{array_map, reference, resource, tensor_map, texture};
pub use message::SPEC_HASH;

/// Bytes of a page of memory on x86-64.
pub const PAGE_BYTES: usize = 4096;

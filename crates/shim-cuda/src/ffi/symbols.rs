//! The exported symbols, generated from `spec/cuda.api`: one a line, each going through [`crate::ffi::exported_call`].
#![expect(unsafe_code, reason = "the C interface of the library")]
#![allow(non_snake_case, reason = "the symbols and their parameters carry the vendor's names")]
#![allow(unreachable_pub, reason = "reached through the dynamic linker")]
#![allow(
    unused_unsafe,
    reason = "a hand-written body that takes no pointer is safe, its caller is generated all the same"
)]
#![allow(
    clippy::missing_safety_doc,
    clippy::too_many_arguments,
    reason = "generated; each symbol documents its contract"
)]

use katydid_cuda_sys as sys;

include!(concat!(env!("OUT_DIR"), "/entry.rs"));

/// Marks this library as Katydid's shim: the worker refuses to take it for a driver, which would call itself.
#[unsafe(no_mangle)]
pub extern "C" fn katydid_shim_marker() -> u32 {
    1
}

/// Tells the build of this library to supervisors, whose images carry the file.
#[used]
#[unsafe(link_section = ".note.katydid")]
static BUILD_NOTE: katydid_wire::build_note::BuildNote = katydid_wire::build_note::BuildNote::current();

//! The exported symbols, generated from `spec/opencl.api`: one a line, each through [`crate::ffi::returns`].
#![expect(unsafe_code, reason = "the FFI boundary of the library")]
#![allow(non_snake_case, reason = "the symbols and their parameters carry the vendor's names")]
#![allow(unreachable_pub, reason = "reached through the dynamic linker")]
#![allow(
    unused_unsafe,
    reason = "a hand-written body that takes no pointer is safe, its caller is generated all the same"
)]
#![allow(
    clippy::missing_safety_doc,
    clippy::redundant_closure,
    clippy::too_many_arguments,
    reason = "generated; each symbol documents its contract"
)]

use katydid_opencl_sys as sys;

include!(concat!(env!("OUT_DIR"), "/opencl_entry.rs"));

/// Marks this library as Katydid's: the worker refuses it as a driver, which would call itself.
#[unsafe(no_mangle)]
pub extern "C" fn katydid_shim_marker() -> u32 {
    1
}

/// Identifies the build of this library to supervisors, whose images contain the file.
#[used]
#[unsafe(link_section = ".note.katydid")]
static BUILD_NOTE: katydid_wire::build_note::BuildNote = katydid_wire::build_note::BuildNote::current();

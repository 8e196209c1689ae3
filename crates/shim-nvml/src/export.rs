//! The exported symbols that ask the server.
//!
//! C passes numbers and pointers in the same registers, so each symbol takes six words, of which its function uses the first
//! ones.

#![expect(unsafe_code, reason = "exports C symbols")]

use katydid_wire::nvml::{FUNCTIONS, code};

use crate::{call, link};

/// Marks this library for the worker, which never takes it for the machine's own.
#[unsafe(no_mangle)]
pub extern "C" fn katydid_nvml_marker() -> u32 {
    1
}

/// Tells the build of this library to supervisors, whose images carry the file.
#[used]
#[unsafe(link_section = ".note.katydid")]
static BUILD_NOTE: katydid_wire::build_note::BuildNote = katydid_wire::build_note::BuildNote::current();

/// Starts NVML, as old programs do.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit() -> u32 {
    link::start()
}

/// Connects to the server; NVML counts calls, so each needs an `nvmlShutdown`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit_v2() -> u32 {
    link::start()
}

/// Starts NVML, optionally without GPUs or without attaching to them; neither makes a difference here.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlInitWithFlags(_flags: u32) -> u32 {
    link::start()
}

/// Ends NVML as often as it was started.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlShutdown() -> u32 {
    link::end()
}

/// # Safety
///
/// As [`call::pass_on`].
unsafe fn pass_on(at: usize, arguments: [usize; 6]) -> u32 {
    match FUNCTIONS.get(at) {
        // SAFETY: handed on.
        Some(function) => unsafe { call::pass_on(at as u16 + 1, function, arguments) },
        None => code::UNKNOWN,
    }
}

macro_rules! exports {
    ($($name:ident: $($kind:ident $(($bytes:literal))?)*;)*) => {
        /// Indices in the table, in its order.
        #[allow(non_camel_case_types, reason = "the vendor's names")]
        #[derive(Clone, Copy)]
        enum At { $($name),* }

        $(
            /// Asks the server.
            ///
            /// # Safety
            ///
            /// Pointers are null or valid as NVML requires.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> u32 {
                // SAFETY: the caller's promise is handed on.
                unsafe { pass_on(At::$name as usize, [a, b, c, d, e, f]) }
            }
        )*
    };
}

katydid_wire::nvml_functions!(exports);

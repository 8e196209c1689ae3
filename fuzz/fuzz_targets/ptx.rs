//! PTX texts: parser, linker, decoder and a short run of the interpreter.

#![no_main]

#[path = "../bodies/interpret.rs"]
mod interpret;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    interpret::interpret(&String::from_utf8_lossy(bytes));
});

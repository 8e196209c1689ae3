//! The saved state of a session: its start, and every record of it.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = (katydid_session::SessionRequirements::read(bytes), katydid_session::messages_of(bytes));
});

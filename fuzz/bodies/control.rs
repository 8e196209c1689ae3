//! One line between a server and a worker, read by both.
//!
//! Shared by the fuzz target `control` and by the test of kept and damaged lines.

/// Reads the line as each side, and returns how many of them accept it.
pub(crate) fn read(bytes: &[u8]) -> usize {
    usize::from(katydid_server::fuzz_entry::line_of_a_worker(bytes))
        + usize::from(katydid_worker::fuzz_entry::line_of_the_server(bytes))
}

//! Hashes of what programs load, kept from one process to the next, so that the second one reads nothing of it.
//!
//! ```text
//! memory ── query.rs, maps.rs ──▶ bytes of files ── origin.rs ──▶ which ones, unchanged in memory ── cache.rs ──▶ length and hash
//! ```
//!
//! A part of memory that shows a file, and that no process has written to, is known by that file (device, number, size, times of
//! its last changes) and where in it. What this trusts is the file system: that a file whose bytes change has another time of
//! change (`ctime`), which no program can set. A file that has changed within the last two seconds is not kept, since it can
//! change once more without another time.
//!
//! The rule: whatever is wrong, missing, damaged or another process's is as if there were no cache. Nothing here is an error.

mod cache;
mod maps;
mod origin;
mod query;

pub use cache::{HashCache, ImageHash, Lookup};

/// Bytes from which an image is worth asking for: to hash a smaller one takes no longer than to find out where its bytes come
/// from, which takes milliseconds in a process with thousands of mappings unless the kernel answers for single addresses.
#[must_use]
pub fn worth_asking() -> usize {
    if maps::are_answered() { 256 << 10 } else { 4 << 20 }
}

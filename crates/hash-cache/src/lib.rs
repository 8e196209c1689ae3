//! Hashes of images that programs load, cached across processes, so that a second program reads nothing of them.
//!
//! ```text
//! memory ── query.rs, maps.rs ──▶ bytes of files ── origin.rs ──▶ which ones, unchanged in memory ── cache.rs ──▶ length and hash
//! ```
//!
//! Memory that maps a file, and that no process has written to, is identified by that file (device, number, size, times of
//! its last changes) and the offset in it. This trusts the file system: a file whose bytes change gets another time of
//! change (`ctime`), which no program can set. A file that has changed within the last two seconds is not cached, since it
//! can change once more at the same time.
//!
//! Anything wrong, missing, damaged or owned by another user counts as no cache. Nothing here is an error.

mod cache;
mod maps;
mod origin;
mod query;

pub use cache::{HashCache, ImageHash, Lookup};

/// Returns the bytes from which an image is worth a lookup: hashing a smaller one takes no longer than finding its origin,
/// which takes milliseconds in a process with thousands of mappings unless the kernel answers for single addresses.
#[must_use]
pub fn worth_asking() -> usize {
    if maps::are_answered() { 256 << 10 } else { 4 << 20 }
}

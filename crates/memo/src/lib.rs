//! Hashes of what programs load, kept from one process to the next, so that the second one reads nothing of it.
//!
//! ```text
//! memory ── maps.rs ──▶ bytes of files ── origin.rs ──▶ which ones, unchanged in memory ── memo.rs ──▶ length and hash
//! ```
//!
//! A part of memory that shows a file, and that nobody has written to, is known by that file (device, number, size, times of
//! its last changes) and where in it. What this trusts is the file system: that a file whose bytes change has another time of
//! change (`ctime`), which no program can set. A file that has changed within the last two seconds is not kept, since it can
//! change once more without another time.
//!
//! The rule: whatever is wrong, missing, damaged or somebody else's is as if there were no memo. Nothing here is an error.

mod maps;
mod memo;
mod origin;

pub use memo::{Asked, Kept, Memo};

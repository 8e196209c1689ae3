//! The contents of a session: saved in an image, and restored.
//!
//! A snapshot is complete or fails. If memory cannot be read, variables of code cannot be found, or copies do not reach an
//! array, an error names it; nothing is left out. And nothing here changes where a driver will place the program's next
//! object. Everything needed on a device was made before the program came ([`CopyContext`]), or lies at addresses of the
//! worker's own (`spare_memory.rs`).

mod area;
mod areas;
mod buffers;
mod capture;
mod code;
mod contexts;
mod copy_context;
mod declared;
mod error;
mod hash;
mod history;
mod moved;
mod precopy;
mod precopy_state;
mod restore;
mod session_image;
mod soft;
mod spare_memory;
mod transfer;
mod zeros;

pub use copy_context::CopyContext;
pub use error::SnapshotError;
pub(crate) use history::Snapshots;
pub use session_image::journal_of;

//! The contents of a session: kept in an image, and put back.
//!
//! The rule kept here: what a snapshot says is whole is whole. Memory that cannot be read, code whose variables cannot be
//! found, arrays that no copy reaches are named in an error; nothing is left out. And nothing here changes where a driver
//! will put the program's next object: what is needed on a device was made before the program came ([`CopyContext`]), or lies
//! at addresses of the worker's own (`scratch.rs`).

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
mod scratch;
mod session_image;
mod soft;
mod transfer;
mod zeros;

pub use copy_context::CopyContext;
pub use error::SnapshotError;
pub(crate) use history::Snapshots;
pub use session_image::journal_of;

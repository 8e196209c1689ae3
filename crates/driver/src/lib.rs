//! Opens a CUDA driver library and its table of functions.
//!
//! The worker calls the opened library, NVIDIA's or softcuda, through one table. Nothing above this crate knows which of the two
//! it is.

mod choice;
mod error;
mod open;
mod table;

pub use choice::DriverChoice;
pub use error::DriverError;
pub use open::{OpenLibrary, load_compilers, open};
pub use table::Driver;

//! State of a process in a driver library, beside its objects: shim and softcuda answer from the same code.
//!
//! Nothing here asks a GPU or a worker, and nothing is made up that no measurement of NVIDIA's driver shows. If there is
//! only its documentation, the comment names it.

pub mod coredump;
pub mod environment;
pub mod launch;
pub mod log;
pub mod settings;
pub mod units;
pub mod wiped;

//! What a driver library keeps of a process beside its objects: the shim and softcuda answer from the same books.
//!
//! Nothing here asks a GPU or a worker. The rule: what is not known of NVIDIA's driver from a measurement is not made up;
//! where its own documentation is all there is, the comment names it.

pub mod coredump;
pub mod environment;
pub mod launch;
pub mod log;
pub mod settings;
pub mod units;
pub mod wiped;

//! Rules of the CUDA driver that two libraries check: the shim in the program, softcuda in the driver.
//!
//! A rule is a function of the ABI's types and plain numbers, and asks no GPU and no worker. It stands here only if both
//! libraries follow it; what one alone needs, or does in another way, stays there. Where a comment names a driver, the rule was
//! measured on it. A rule refuses with `ERROR_INVALID_VALUE`, unless its comment names another code.
//!
//! [`state`] has what a driver library keeps of a process beside its objects.

pub mod caller;
pub mod cluster;
pub mod code;
pub mod copy;
pub mod copy_batch;
pub mod device;
pub mod launch;
pub mod mem_advise;
pub mod memory;
pub mod occupancy;
pub mod outcome;
pub mod params;
pub mod pointer;
pub mod pool;
pub mod state;
pub mod stream;
pub mod tensor_map;
pub mod texture;

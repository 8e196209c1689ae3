//! Rules of the CUDA driver that two libraries check: the shim in the program, and softcuda as the driver.
//!
//! A rule is a function of the ABI's types and plain numbers, and asks no GPU and no worker. It is here only if both
//! libraries follow it; rules of one library stay there. Where a comment names a driver, the rule was measured on it. A rule
//! refuses with `ERROR_INVALID_VALUE`, unless its comment names another code.
//!
//! [`state`] has the state of a process in a driver library, beside its objects.

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

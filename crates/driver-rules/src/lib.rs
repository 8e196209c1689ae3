//! Rules of the CUDA driver that two libraries check: the shim in the program, softcuda in the driver.
//!
//! A rule asks no GPU and no worker. [`state`] has what a driver library keeps of a process beside its objects.

pub mod mem_advise;
pub mod state;

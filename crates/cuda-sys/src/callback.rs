//! Functions of the program that the driver calls.

use std::ffi::c_void;

use crate::{CUresult, CUstream};

/// `cuLaunchHostFunc`: called with the data given at the launch.
pub type CUhostFn = Option<unsafe extern "C" fn(user_data: *mut c_void)>;
/// `cuStreamAddCallback`: called with the stream, its status and the data given at registration.
pub type CUstreamCallback = Option<unsafe extern "C" fn(stream: CUstream, status: CUresult, user_data: *mut c_void)>;
/// `cuOccupancyMaxPotentialBlockSize`: dynamic shared memory in bytes for a block size.
pub type CUoccupancyB2DSize = Option<unsafe extern "C" fn(block_size: i32) -> usize>;
/// Function that `cuDeviceRegisterAsyncNotification` registers: the driver calls it on events of the device.
pub type CUasyncCallback =
    Option<unsafe extern "C" fn(info: *mut c_void, user_data: *mut c_void, callback: *mut c_void)>;
/// Function that `cuLogsRegisterCallback` registers: the driver calls it for each line of its log.
pub type CUlogsCallback =
    Option<unsafe extern "C" fn(data: *mut c_void, level: u32, message: *mut std::ffi::c_char, length: usize)>;

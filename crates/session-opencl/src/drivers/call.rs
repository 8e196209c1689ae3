//! Calls functions of a driver's table.
//!
//! Handles come from the session's table, so they belong to a driver and are alive. Every pointer given to a driver is to a local
//! or to bytes that outlive the call. [`crate::objects::held_events`] keeps bytes until a command ends.

/// Calls a driver's function that returns a code. A function that the driver lacks is an invalid operation.
macro_rules! driver {
    ($api:expr, $function:ident($($argument:expr),* $(,)?)) => {
        match $api.$function {
            // SAFETY: handles come from the driver itself, pointers are to what outlives the call (see the module).
            Some(function) => katydid_opencl_sys::Code(unsafe { function($($argument),*) }),
            None => katydid_opencl_sys::Code::INVALID_OPERATION,
        }
    };
}

/// Calls a driver's function that returns an object and stores its code through a last argument.
macro_rules! make {
    ($api:expr, $function:ident($($argument:expr),* $(,)?)) => {
        match $api.$function {
            Some(function) => {
                let mut code = 0;
                // SAFETY: as in `driver`; the code is a local.
                let made = unsafe { function($($argument,)* &raw mut code) };
                katydid_opencl_sys::Code(code).ok().map(|()| made)
            }
            None => Err(katydid_opencl_sys::Code::INVALID_OPERATION),
        }
    };
}

pub(crate) use {driver, make};

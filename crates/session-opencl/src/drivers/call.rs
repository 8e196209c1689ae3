//! Calls functions of a driver's table.
//!
//! Handles come out of the session's table, so they are a driver's own and alive; every pointer given to a driver is to
//! a local or to bytes that outlive the call, or the command by [`crate::objects::held_events`].

/// Calls a function of a driver that returns a code; one that the driver does not have is an invalid operation.
macro_rules! driver {
    ($api:expr, $function:ident($($argument:expr),* $(,)?)) => {
        match $api.$function {
            // SAFETY: handles come from the driver itself, pointers are to what outlives the call (see the module).
            Some(function) => katydid_opencl_sys::Code(unsafe { function($($argument),*) }),
            None => katydid_opencl_sys::Code::INVALID_OPERATION,
        }
    };
}

/// Calls a function of a driver that returns an object and tells its code in a last argument.
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

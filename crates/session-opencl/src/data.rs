//! Events of drivers, held; and what drivers tell.

#![expect(unsafe_code, reason = "calls the driver")]

use std::ptr;

use katydid_opencl_sys::{Code, Dispatch, cl_event, void};

/// An event of a driver, held until this value is dropped.
#[derive(Debug)]
pub(crate) struct HeldEvent {
    event: cl_event,
    api: &'static Dispatch,
}

impl HeldEvent {
    /// Takes over a reference that the caller has.
    pub(crate) fn own(event: cl_event, api: &'static Dispatch) -> Self {
        Self { event, api }
    }

    /// Adds a reference.
    pub(crate) fn retain(event: cl_event, api: &'static Dispatch) -> Result<Self, Code> {
        let retain = api.clRetainEvent.ok_or(Code::INVALID_OPERATION)?;
        // SAFETY: the event is alive: the session's table holds it.
        Code(unsafe { retain(event) }).ok()?;
        Ok(Self { event, api })
    }

    /// Returns once the command has ended, whether well or not.
    pub(crate) fn wait(&self) -> Result<(), Code> {
        wait(&[self.event], self.api)
    }

    /// The state of the command: 0 ended, above: not yet, below: failed.
    pub(crate) fn status(&self) -> Result<i32, Code> {
        let get = self.api.clGetEventInfo.ok_or(Code::INVALID_OPERATION)?;
        let mut status = 0i32;
        let parameter = katydid_opencl_sys::constant::EVENT_COMMAND_EXECUTION_STATUS;
        // SAFETY: the event is held; the value has 4 bytes.
        Code(unsafe { get(self.event, parameter, 4, (&raw mut status).cast(), ptr::null_mut()) }).ok()?;
        Ok(status)
    }

    /// The functions of its driver.
    pub(crate) fn api(&self) -> &'static Dispatch {
        self.api
    }

    /// The handle, for as long as this value lives.
    pub(crate) fn handle(&self) -> cl_event {
        self.event
    }
}

impl Drop for HeldEvent {
    fn drop(&mut self) {
        if let Some(release) = self.api.clReleaseEvent {
            // SAFETY: the reference is this value's.
            unsafe { release(self.event) };
        }
    }
}

/// Waits for events of one driver.
pub(crate) fn wait(events: &[cl_event], api: &Dispatch) -> Result<(), Code> {
    let wait = api.clWaitForEvents.ok_or(Code::INVALID_OPERATION)?;
    // SAFETY: the caller holds the events; the list is as long as said.
    Code(unsafe { wait(events.len() as u32, events.as_ptr()) }).ok()
}

/// A value of a fixed size that a driver tells: `get` is given the size and the place.
pub(crate) fn ask<T: Default>(get: impl Fn(usize, *mut void) -> Code) -> Result<T, Code> {
    let mut value = T::default();
    get(size_of::<T>(), (&raw mut value).cast()).ok()?;
    Ok(value)
}

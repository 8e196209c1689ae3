//! Events of drivers that the session holds.

#![expect(unsafe_code, reason = "calls the driver")]

use std::ptr;
use std::sync::Arc;

use katydid_opencl_sys::{Code, Dispatch, cl_event};

use crate::objects::lifetimes::{ObjectRef, OwnedObject};
use crate::objects::object::Object;
use crate::objects::table::Objects;

/// An event of a driver, held with its queue until the last copy of this value is dropped.
#[derive(Debug, Clone)]
pub(crate) struct HeldEvent(ObjectRef);

impl HeldEvent {
    /// Takes ownership of the caller's reference to the event of a command in a queue.
    pub(crate) fn own(event: cl_event, api: &'static Dispatch, queue: &ObjectRef) -> Self {
        Self(OwnedObject::new(Object { handle: event, api, size: 0 }, vec![Arc::clone(queue)]))
    }

    /// Returns the event of an id.
    pub(crate) fn of(objects: &Objects, id: u32) -> Result<Self, Code> {
        objects.hold::<cl_event>(id).map(Self)
    }

    /// Returns an event without a queue, for tests.
    #[cfg(test)]
    pub(crate) fn alone(event: cl_event, api: &'static Dispatch) -> Self {
        Self(OwnedObject::new(Object { handle: event, api, size: 0 }, Vec::new()))
    }

    /// Returns a reference for the table of objects.
    pub(crate) fn hold(&self) -> ObjectRef {
        Arc::clone(&self.0)
    }

    /// Waits until the command has ended, successfully or not.
    pub(crate) fn wait(&self) -> Result<(), Code> {
        wait(&[self.handle()], self.api())
    }

    /// Returns the state of the command: 0 ended, positive not yet, negative failed.
    pub(crate) fn status(&self) -> Result<i32, Code> {
        let get = self.api().clGetEventInfo.ok_or(Code::INVALID_OPERATION)?;
        let mut status = 0i32;
        let parameter = katydid_opencl_sys::constant::EVENT_COMMAND_EXECUTION_STATUS;
        // SAFETY: the event is held; the value has 4 bytes.
        Code(unsafe { get(self.handle(), parameter, 4, (&raw mut status).cast(), ptr::null_mut()) }).ok()?;
        Ok(status)
    }

    /// Returns the functions of the event's driver.
    pub(crate) fn api(&self) -> &'static Dispatch {
        self.0.object().api
    }

    /// Returns the handle, which is valid while this value lives.
    pub(crate) fn handle(&self) -> cl_event {
        cl_event(self.0.object().handle)
    }
}

/// Waits for events of one driver.
pub(crate) fn wait(events: &[cl_event], api: &Dispatch) -> Result<(), Code> {
    let wait = api.clWaitForEvents.ok_or(Code::INVALID_OPERATION)?;
    // SAFETY: the caller holds the events; the list has the stated length.
    Code(unsafe { wait(events.len() as u32, events.as_ptr()) }).ok()
}

//! Markers in queues, which show the end of what was enqueued before them.

#![expect(unsafe_code, reason = "calls the driver")]

use std::ptr;

use katydid_opencl_sys::{Code, cl_command_queue, cl_event};

use crate::drivers::call::driver;
use crate::objects::held_events::HeldEvent;
use crate::objects::lifetimes::ObjectRef;
use crate::objects::object::Object;

/// A marker after everything that a queue had.
#[derive(Debug)]
pub(crate) struct Marker {
    /// Wire id of the queue.
    pub(crate) queue: u32,
    pub(crate) event: HeldEvent,
}

/// Enqueues a marker after everything that a queue has.
pub(crate) fn mark(queue: &Object<cl_command_queue>, hold: &ObjectRef) -> Result<HeldEvent, Code> {
    let mut event = cl_event::NULL;
    driver!(queue.api, clEnqueueMarkerWithWaitList(queue.handle, 0, ptr::null(), &raw mut event)).ok()?;
    driver!(queue.api, clFlush(queue.handle)).ok()?;
    Ok(HeldEvent::own(event, queue.api, hold))
}

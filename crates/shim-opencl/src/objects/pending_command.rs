//! What every command has: a queue, events to wait for, and an event of its own if the program wants one.
#![expect(unsafe_code, reason = "reads and writes through the pointers of C callers")]

use std::sync::Arc;

use katydid_opencl_sys::{Code, cl_command_queue, cl_event};
use katydid_wire::opencl::list as lists;

use crate::ffi::arguments::list;
use crate::objects::event::{self, Event};
use crate::objects::handle::{HeldObject, Object, ids, object, objects, release};
use crate::objects::queue::Queue;
use crate::process::session;

/// A command that is being enqueued. Dropped before [`PendingCommand::publish`], it leaves no event.
pub(crate) struct PendingCommand {
    pub(crate) queue: Arc<Queue>,
    waits: Vec<u32>,
    event: Option<Arc<Event>>,
    event_out: *mut cl_event,
    /// Among the commands of its queue ([`crate::objects::queue::Progress`]).
    number: u64,
    /// The program takes it for done when the call returns.
    blocks: bool,
    /// The session's when it was begun ([`crate::process::session::worker`]).
    pub(crate) worker: u32,
}

// SAFETY: `event_out` is written by `publish` alone, which takes the command from all threads that share it.
unsafe impl Sync for PendingCommand {}

/// Reads a list of events.
///
/// # Safety
///
/// `events` is null or holds `count` handles.
pub(crate) unsafe fn waits(queue: &Queue, count: u32, events: *const cl_event) -> Result<Vec<u32>, Code> {
    if (count == 0) != events.is_null() {
        return Err(Code::INVALID_EVENT_WAIT_LIST);
    }
    // SAFETY: handed on.
    let handles = unsafe { list(count as usize, events) };
    let events = objects::<Event>(handles).map_err(|_| Code::INVALID_EVENT_WAIT_LIST)?;
    if events.iter().any(|event| event.context.base.id != queue.context.base.id) {
        return Err(Code::INVALID_CONTEXT);
    }
    Ok(ids(&events))
}

impl PendingCommand {
    /// Checks what the program gave; `command` is what the event's type will be.
    ///
    /// # Safety
    ///
    /// `events` is null or holds `count` handles; `event_out` is null or writable until the call returns.
    pub(crate) unsafe fn new(
        queue: cl_command_queue,
        (count, events, event_out): (u32, *const cl_event, *mut cl_event),
        command: u32,
    ) -> Result<Self, Code> {
        let queue = object::<Queue>(queue)?;
        // SAFETY: handed on.
        let waits = unsafe { waits(&queue, count, events)? };
        let worker = session::worker()?;
        let number = queue.progress.begin();
        let mut order = Self { queue, waits, event: None, event_out, number, blocks: false, worker };
        if !event_out.is_null() {
            order.event = Some(Event::of_command(&order.queue, command, number)?);
        }
        Ok(order)
    }

    /// The event's id; 0: none is wanted.
    pub(crate) fn event(&self) -> u32 {
        self.event.as_ref().map_or(0, |event| event.base.id)
    }

    /// The event, held beyond the order; the order has one.
    pub(crate) fn held_event(&self) -> Result<HeldObject<Event>, Code> {
        self.event.as_ref().map(|event| HeldObject::new(Arc::clone(event))).ok_or(Code::INVALID_EVENT)
    }

    /// Wire id of the command's queue.
    pub(crate) fn queue(&self) -> u32 {
        self.queue.base.id
    }

    /// The bytes of the command's message: the waits first.
    pub(crate) fn arguments(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(128);
        lists::put(&mut bytes, &self.waits);
        bytes
    }

    /// Whether there are events to wait for.
    pub(crate) fn has_waits(&self) -> bool {
        !self.waits.is_empty()
    }

    /// Has the command an event even if the program wants none; it ends with this value.
    pub(crate) fn with_event(mut self, command: u32) -> Result<Self, Code> {
        if self.event.is_none() {
            self.event = Some(Event::of_command(&self.queue, command, self.number)?);
        }
        Ok(self)
    }

    /// The program waits for the command, if `blocking`.
    pub(crate) fn blocking(mut self, blocking: bool) -> Self {
        self.blocks = blocking;
        self
    }

    /// Whether the call waits for the command's end.
    pub(crate) fn blocks(&self) -> bool {
        self.blocks
    }

    /// The command was sent. The program goes on, or waits for its event if `blocking`.
    pub(crate) fn sent(self, blocking: bool) -> Result<(), Code> {
        if !blocking {
            self.publish();
            return Ok(());
        }
        event::wait_for(&[self.event()])?;
        self.ended();
        Ok(())
    }

    /// The command has ended, and so has what was before it in a queue that keeps its order.
    pub(crate) fn ended(self) {
        if self.queue.is_in_order() {
            self.queue.progress.end(self.number);
        }
        self.publish();
    }

    /// Whether no thread can find that nothing is sent for the command: no event tells of it, and it waits for none. One that the
    /// program waits for must have no commands before it, either.
    pub(crate) fn can_be_skipped(&self, blocking: bool) -> bool {
        let is_next = || self.queue.is_in_order() && self.queue.progress.have_ended_before(self.number);
        self.event.is_none() && !self.has_waits() && (!blocking || is_next())
    }

    /// Nothing is sent for the command: it has ended when those before it have.
    pub(crate) fn skipped(self) {
        if self.queue.is_in_order() {
            self.queue.progress.skip(self.number);
        }
    }

    /// Does `work` while no other thread enqueues anything to the queue; none if one has since this command was begun.
    pub(crate) fn alone<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        self.queue.progress.alone(self.number, work)
    }

    /// The command is enqueued: the program gets its event.
    pub(crate) fn publish(mut self) {
        if !self.event_out.is_null()
            && let Some(event) = self.event.take()
        {
            if self.blocks {
                event.assume_done();
            }
            // SAFETY: writable by the contract of `new`.
            unsafe { self.event_out.write_unaligned(event.handle()) };
        }
    }
}

impl Drop for PendingCommand {
    fn drop(&mut self) {
        self.queue.progress.sent();
        if let Some(event) = self.event.take() {
            // The worker takes the release of an event that it never had for what it is.
            let _ = release::<Event>(event.handle());
        }
    }
}

//! The common part of every command: a queue, events to wait for, and an event if the program wants one.
#![expect(unsafe_code, reason = "reads and writes through the pointers of C callers")]

use std::sync::Arc;

use katydid_opencl_sys::{Code, cl_command_queue, cl_event};
use katydid_wire::opencl::list as lists;

use crate::ffi::arguments::list;
use crate::objects::event::{self, Event};
use crate::objects::handle::{HeldObject, Object, ids, object, objects, release};
use crate::objects::queue::Queue;
use crate::process::session;

/// A command that is being enqueued. If it is dropped before [`PendingCommand::publish`], no event remains.
pub(crate) struct PendingCommand {
    pub(crate) queue: Arc<Queue>,
    waits: Vec<u32>,
    event: Option<Arc<Event>>,
    event_out: *mut cl_event,
    /// Number of the command in its queue ([`crate::objects::queue::Progress`]).
    number: u64,
    /// Whether the program takes it for done when the call returns.
    blocks: bool,
    /// Number of the session's worker when the command was begun ([`crate::process::session::worker`]).
    pub(crate) worker: u32,
}

// SAFETY: `event_out` is written by `publish` alone, which consumes the command.
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
    // SAFETY: guaranteed by the caller.
    let handles = unsafe { list(count as usize, events) };
    let events = objects::<Event>(handles).map_err(|_| Code::INVALID_EVENT_WAIT_LIST)?;
    if events.iter().any(|event| event.context.base.id != queue.context.base.id) {
        return Err(Code::INVALID_CONTEXT);
    }
    Ok(ids(&events))
}

impl PendingCommand {
    /// Checks the program's arguments; `command_type` will be the event's type.
    ///
    /// # Safety
    ///
    /// `events` is null or holds `count` handles; `event_out` is null or writable until the call returns.
    pub(crate) unsafe fn new(
        queue: cl_command_queue,
        (count, events, event_out): (u32, *const cl_event, *mut cl_event),
        command_type: u32,
    ) -> Result<Self, Code> {
        let queue = object::<Queue>(queue)?;
        // SAFETY: guaranteed by the caller.
        let waits = unsafe { waits(&queue, count, events)? };
        let worker = session::worker()?;
        let number = queue.progress.begin();
        let mut command = Self { queue, waits, event: None, event_out, number, blocks: false, worker };
        if !event_out.is_null() {
            command.event = Some(Event::of_command(&command.queue, command_type, number)?);
        }
        Ok(command)
    }

    /// Returns the event's id; 0 without an event.
    pub(crate) fn event(&self) -> u32 {
        self.event.as_ref().map_or(0, |event| event.base.id)
    }

    /// Returns a reference to the event that outlives the command; the command must have an event.
    pub(crate) fn held_event(&self) -> Result<HeldObject<Event>, Code> {
        self.event.as_ref().map(|event| HeldObject::new(Arc::clone(event))).ok_or(Code::INVALID_EVENT)
    }

    /// Returns the wire id of the command's queue.
    pub(crate) fn queue(&self) -> u32 {
        self.queue.base.id
    }

    /// Returns the arguments of the command's message: the waits come first.
    pub(crate) fn arguments(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(128);
        lists::put(&mut bytes, &self.waits);
        bytes
    }

    /// Returns whether there are events to wait for.
    pub(crate) fn has_waits(&self) -> bool {
        !self.waits.is_empty()
    }

    /// Gives the command an event even if the program wants none. Such an event ends with this value.
    pub(crate) fn with_event(mut self, command_type: u32) -> Result<Self, Code> {
        if self.event.is_none() {
            self.event = Some(Event::of_command(&self.queue, command_type, self.number)?);
        }
        Ok(self)
    }

    /// Sets whether the program waits for the command.
    pub(crate) fn blocking(mut self, blocking: bool) -> Self {
        self.blocks = blocking;
        self
    }

    /// Returns whether the call waits for the command's end.
    pub(crate) fn blocks(&self) -> bool {
        self.blocks
    }

    /// Completes a command that was sent: publishes its event, or waits for it if `blocking`.
    pub(crate) fn sent(self, blocking: bool) -> Result<(), Code> {
        if !blocking {
            self.publish();
            return Ok(());
        }
        event::wait_for(&[self.event()])?;
        self.ended();
        Ok(())
    }

    /// Notes that the command has ended; in an in-order queue, all earlier ones have too.
    pub(crate) fn ended(self) {
        if self.queue.is_in_order() {
            self.queue.progress.end(self.number);
        }
        self.publish();
    }

    /// Returns whether the command need not be sent, because no thread could notice: it has no event and waits for none. A
    /// command that the program waits for must also have no unfinished predecessors.
    pub(crate) fn can_be_skipped(&self, blocking: bool) -> bool {
        let is_next = || self.queue.is_in_order() && self.queue.progress.have_ended_before(self.number);
        self.event.is_none() && !self.has_waits() && (!blocking || is_next())
    }

    /// Completes a command that is not sent: it ends when all earlier ones have.
    pub(crate) fn skipped(self) {
        if self.queue.is_in_order() {
            self.queue.progress.skip(self.number);
        }
    }

    /// Runs `work` while no other thread enqueues to the queue; `None` if one has since this command was begun.
    pub(crate) fn alone<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        self.queue.progress.alone(self.number, work)
    }

    /// Completes a command that was enqueued: the program gets its event.
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
            // The worker accepts the release of an event that it never had.
            let _ = release::<Event>(event.handle());
        }
    }
}

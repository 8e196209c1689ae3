//! Events: whether commands have ended, and when.
#![expect(unsafe_code, reason = "reads and writes through the pointers of C callers")]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, OnceLock};

use katydid_opencl_sys::constant::{
    COMMAND_USER, COMPLETE, EVENT_COMMAND_EXECUTION_STATUS, EVENT_COMMAND_QUEUE, EVENT_COMMAND_TYPE, EVENT_CONTEXT,
    EVENT_REFERENCE_COUNT, PROFILING_COMMAND_COMPLETE, PROFILING_COMMAND_END, QUEUED, SUBMITTED,
};
use katydid_opencl_sys::{Code, cl_command_queue, cl_context, cl_event, cl_event_notify, void};
use katydid_wire::codec::Field as _;
use katydid_wire::opencl::message::{kdclEventCallback, kdclSetUserEvent, kdclUserEvent, kdclWait};
use katydid_wire::opencl::{list as lists, query};

use crate::ffi::arguments::list;
use crate::host::pending_reads;
use crate::objects::context::Context;
use crate::objects::handle::{self, Base, HeldObject, Object, ids, kind_of_object, make, object, objects};
use crate::objects::info::{QueryBuffer, ask, handles};
use crate::objects::queue::Queue;
use crate::process::session;
use crate::process::upcall::{self, CallbackCall};

/// An event: of a command, or a user event.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) base: Base,
    pub(crate) context: HeldObject<Context>,
    queue: Option<HeldObject<Queue>>,
    /// The kind of command, a `CL_COMMAND_…`.
    command: u32,
    /// Number of its command in the queue ([`crate::objects::queue::Progress`]).
    number: u64,
    /// The final state, once it is known; else [`QUEUED`].
    state: AtomicI32,
    /// Whether the program has waited for the command, although it may still run: queries then wait.
    is_taken_for_done: AtomicBool,
    /// When the command reached its states; queried once, after its end.
    times: OnceLock<BTreeMap<u32, u64>>,
    /// Whether the program has set it.
    is_set: AtomicBool,
}

kind_of_object! { Event cl_event EVENT INVALID_EVENT MAX_PROGRAM_OBJECTS, fn ends_lazily(&self) -> bool { true } }

impl Event {
    /// Makes the event of a command that is about to be enqueued, with the command's number.
    pub(crate) fn of_command(queue: &Arc<Queue>, command: u32, number: u64) -> Result<Arc<Self>, Code> {
        make(|base| {
            let (context, queue) = (queue.context.clone(), Some(HeldObject::new(Arc::clone(queue))));
            Ok(Self { number, ..Self::new(base, context, queue, command) })
        })
    }

    fn new(base: Base, context: HeldObject<Context>, queue: Option<HeldObject<Queue>>, command: u32) -> Self {
        let state = AtomicI32::new(QUEUED.cast_signed());
        let is_taken_for_done = AtomicBool::new(false);
        let (times, is_set) = (OnceLock::new(), AtomicBool::new(false));
        Self { base, context, queue, command, number: 0, state, is_taken_for_done, times, is_set }
    }

    /// Notes that the call which enqueued its command returns as if the command had ended.
    pub(crate) fn assume_done(&self) {
        self.is_taken_for_done.store(!self.has_ended(), Ordering::Release);
    }

    /// Waits for the command if a call has returned as if it had ended.
    fn wait_if_assumed_done(&self) {
        if self.is_taken_for_done.load(Ordering::Acquire) && !self.has_ended() {
            // The state tells how it ended.
            let _ = end_of(&[self.base.id], false);
        }
    }

    /// Returns its command's queue; null if it has none.
    pub(crate) fn queue(&self) -> cl_command_queue {
        self.queue.as_ref().map_or(cl_command_queue::NULL, |queue| queue.handle())
    }

    /// Records its final state; the data that the command read is in the program's memory.
    fn ended(&self, status: i32) {
        self.state.store(status, Ordering::Release);
        if let Some(queue) = self.queue.as_ref().filter(|queue| queue.is_in_order() && status == COMPLETE.cast_signed())
        {
            queue.progress.end(self.number);
        }
    }

    /// Returns when the command reached a state; `None` before its end, or if the driver does not tell.
    fn time(&self, state: u32) -> Result<Option<u64>, Code> {
        if let Some(queue) = &self.queue {
            queue.times_are_asked();
        }
        self.wait_if_assumed_done();
        if !self.has_ended() {
            return Ok(None);
        }
        if self.times.get().is_none() {
            self.came_at(&ask(query::TIMES, self.base.id, 0, 0, &[])?)?;
        }
        Ok(self.times.get().and_then(|times| times.get(&state).copied()))
    }

    /// Returns whether its command is known to have ended, successfully or not.
    fn has_ended(&self) -> bool {
        let by_queue =
            || self.queue.as_ref().is_some_and(|queue| queue.is_in_order() && queue.progress.has_ended(self.number));
        self.state.load(Ordering::Acquire) <= COMPLETE.cast_signed() || by_queue()
    }

    /// Records when the command reached its states, from the worker's list. The list is empty for a failed command.
    fn came_at(&self, list: &[u8]) -> Result<(), Code> {
        let wire_ids: Vec<u64> = lists::take(&mut &*list).ok_or(Code::INVALID_EVENT)?;
        if !wire_ids.is_empty() {
            // Another thread may have asked too, with the same answer.
            let _ = self.times.set(wire_ids.chunks_exact(2).map(|pair| (pair[0] as u32, pair[1])).collect());
        }
        Ok(())
    }

    /// Returns whether a wait should also return the times.
    fn wants_times(&self) -> bool {
        self.queue.as_ref().is_some_and(|queue| queue.are_times_asked()) && self.times.get().is_none()
    }

    /// Returns the present state. When it reports the end, the data that the command read is in the program's memory.
    fn status(&self) -> Result<i32, Code> {
        let state = self.state.load(Ordering::Acquire);
        if state <= COMPLETE.cast_signed() {
            return Ok(state);
        }
        self.wait_if_assumed_done();
        let value = ask(query::EVENT, self.base.id, 0, EVENT_COMMAND_EXECUTION_STATUS, &[])?;
        let status = i32::take(&mut &value[..]).ok_or(Code::INVALID_EVENT)?;
        if status <= COMPLETE.cast_signed() {
            pending_reads::deliver()?;
            self.ended(status);
        }
        Ok(status)
    }
}

/// Waits for events by their ids; afterwards, the data that they read is in the program's memory.
pub(crate) fn wait_for(ids: &[u32]) -> Result<(), Code> {
    wait_with(ids, false).map(drop)
}

/// Waits for events, and returns the times of a single event if they are wanted.
fn wait_with(ids: &[u32], wants_times: bool) -> Result<Vec<u8>, Code> {
    let times = end_of(ids, wants_times)?;
    session::take_deferred()?;
    Ok(times)
}

/// Waits for events, and ignores earlier deferred errors.
fn end_of(ids: &[u32], wants_times: bool) -> Result<Vec<u8>, Code> {
    let mut bytes = Vec::new();
    lists::put(&mut bytes, ids);
    let waited = session::call(&kdclWait { wanted: wants_times.into(), events: &bytes });
    pending_reads::deliver()?;
    Ok(waited?.times)
}

/// # Safety
///
/// `events` is null or holds `count` handles.
pub(crate) unsafe fn wait_for_events(count: u32, events: *const cl_event) -> Result<(), Code> {
    // SAFETY: guaranteed by the caller.
    let handles = unsafe { list(count as usize, events) };
    let events = objects::<Event>(handles)?;
    let first = events.first().ok_or(Code::INVALID_VALUE)?;
    if events.iter().any(|event| event.context.base.id != first.context.base.id) {
        return Err(Code::INVALID_CONTEXT);
    }
    // The times of several events are queried on demand.
    let only = events.first().filter(|event| events.len() == 1 && event.wants_times());
    let times = wait_with(&ids(&events), only.is_some())?;
    if let Some(event) = only {
        event.came_at(&times)?;
    }
    events.iter().for_each(|event| event.ended(COMPLETE.cast_signed()));
    Ok(())
}

/// # Safety
///
/// As a query's pointers are ([`QueryBuffer::answer`]).
pub(crate) unsafe fn get_event_info(
    event: cl_event,
    param_name: u32,
    size: usize,
    value: *mut void,
    needed: *mut usize,
) -> Result<(), Code> {
    let event = object::<Event>(event)?;
    let bytes = match param_name {
        EVENT_COMMAND_QUEUE => handles([event.queue.as_ref().map_or(0, |queue| queue.base.handle)]),
        EVENT_CONTEXT => handle::bytes(&*event.context),
        EVENT_COMMAND_TYPE => event.command.to_le_bytes().to_vec(),
        EVENT_REFERENCE_COUNT => event.base.count().to_le_bytes().to_vec(),
        EVENT_COMMAND_EXECUTION_STATUS => event.status()?.to_le_bytes().to_vec(),
        _ => return Err(Code::INVALID_VALUE),
    };
    // SAFETY: guaranteed by the caller.
    unsafe { QueryBuffer { size, value, needed }.answer(&bytes) }
}

/// # Safety
///
/// As a query's pointers are ([`QueryBuffer::answer`]).
pub(crate) unsafe fn get_event_profiling_info(
    event: cl_event,
    param_name: u32,
    size: usize,
    value: *mut void,
    needed: *mut usize,
) -> Result<(), Code> {
    let event = object::<Event>(event)?;
    let bytes = match event.time(param_name)? {
        Some(time) => time.to_le_bytes().to_vec(),
        None => {
            let bytes = ask(query::PROFILING, event.base.id, 0, param_name, &[])?;
            // A program that learns of a command's end may use the data that it read.
            if matches!(param_name, PROFILING_COMMAND_END | PROFILING_COMMAND_COMPLETE) {
                event.status()?;
            }
            bytes
        }
    };
    // SAFETY: guaranteed by the caller.
    unsafe { QueryBuffer { size, value, needed }.answer(&bytes) }
}

pub(crate) fn create_user_event(context: cl_context) -> Result<cl_event, Code> {
    let context = object::<Context>(context)?;
    let event = make(|base| {
        let (worker, message) = (session::worker()?, kdclUserEvent { event: base.id, context: context.base.id });
        if context.has_made_event(worker) {
            session::enqueue(&message)?;
        } else {
            session::call(&message)?;
            context.made_event(worker);
        }
        Ok(Event::new(base, HeldObject::new(Arc::clone(&context)), None, COMMAND_USER))
    })?;
    Ok(event.handle())
}

pub(crate) fn set_user_event_status(event: cl_event, execution_status: i32) -> Result<(), Code> {
    let event = object::<Event>(event)?;
    if event.command != COMMAND_USER {
        return Err(Code::INVALID_EVENT);
    }
    if execution_status > COMPLETE.cast_signed() {
        return Err(Code::INVALID_VALUE);
    }
    let message = kdclSetUserEvent { event: event.base.id, status: execution_status };
    // The first status cannot fail; the driver reports errors of later ones.
    if event.is_set.swap(true, Ordering::AcqRel) {
        session::call(&message).map(drop)
    } else {
        session::enqueue(&message)
    }
}

pub(crate) fn retain_event(event: cl_event) -> Result<(), Code> {
    handle::retain::<Event>(event)
}

pub(crate) fn release_event(event: cl_event) -> Result<(), Code> {
    handle::release::<Event>(event)
}

/// # Safety
///
/// `pfn_notify` may be called once with `user_data`, from any thread.
pub(crate) unsafe fn set_event_callback(
    event: cl_event,
    state: i32,
    pfn_notify: cl_event_notify,
    user_data: *mut void,
) -> Result<(), Code> {
    let event = object::<Event>(event)?;
    let function = pfn_notify.ok_or(Code::INVALID_VALUE)?;
    if !(COMPLETE.cast_signed()..=SUBMITTED.cast_signed()).contains(&state) {
        return Err(Code::INVALID_VALUE);
    }
    let (id, event, data) = (event.base.id, HeldObject::new(event), user_data.expose_provenance());
    let call = CallbackCall::once(move |status| {
        // SAFETY: called once, as the contract permits; the event lives until then.
        unsafe { function(event.handle(), status, std::ptr::with_exposed_provenance_mut(data)) }
    });
    let token = upcall::register(call)?;
    let outcome = session::call(&kdclEventCallback { event: id, type_of: state, token });
    outcome.map(drop).inspect_err(|_| upcall::forget(token))
}

//! Events, and waiting.

#![expect(unsafe_code, reason = "calls the driver")]
#![allow(non_snake_case, reason = "handlers carry the names of their messages")]

use std::ptr;
use std::sync::Arc;

use katydid_opencl_sys::constant::{COMPLETE, EVENT_COMMAND_QUEUE, SUBMITTED};
use katydid_opencl_sys::{Code, cl_command_queue, cl_context, cl_event};
use katydid_wire::frame::FrameHead;
use katydid_wire::opencl::message;

use crate::calls::arguments::Arguments;
use crate::calls::executor::ExecutorCall;
use crate::calls::fault::Fault;
use crate::calls::marker::mark;
use crate::calls::upcalls::PendingCallback;
use crate::drivers::call::{driver, make};
use crate::drivers::query::ask;
use crate::handlers::info::listed;
use crate::journal::times;
use crate::objects::held_events::{HeldEvent, wait};
use crate::objects::object::Object;
use crate::state::Session;

/// Makes an event whose status the program sets (`clCreateUserEvent`).
pub(crate) fn kdclUserEvent(
    session: &mut Session,
    _: &FrameHead,
    message: message::kdclUserEvent,
) -> Result<message::kdclUserEventReply, Fault> {
    let context: Object<cl_context> = session.shared.objects.get(message.context)?;
    let handle = make!(context.api, clCreateUserEvent(context.handle))?;
    let made_of = session.shared.objects.hold::<cl_context>(message.context)?;
    session.shared.objects.set(message.event, Object { handle, api: context.api, size: 0 }, vec![made_of])?;
    Ok(message::kdclUserEventReply {})
}

/// Sets the status of an event that the program made.
pub(crate) fn kdclSetUserEvent(
    session: &mut Session,
    _: &FrameHead,
    message: message::kdclSetUserEvent,
) -> Result<message::kdclSetUserEventReply, Fault> {
    let event: Object<cl_event> = session.shared.objects.get(message.event)?;
    driver!(event.api, clSetUserEventStatus(event.handle, message.status)).ok()?;
    Ok(message::kdclSetUserEventReply {})
}

/// Registers a callback for when an event reaches a state.
pub(crate) fn kdclEventCallback(
    session: &mut Session,
    _: &FrameHead,
    message: message::kdclEventCallback,
) -> Result<message::kdclEventCallbackReply, Fault> {
    let event = HeldEvent::of(&session.shared.objects, message.event)?;
    let state = message.type_of;
    if !(COMPLETE.cast_signed()..=SUBMITTED.cast_signed()).contains(&state) {
        return Err(Code::INVALID_VALUE.into());
    }
    let (shared, token) = (Arc::clone(&session.shared), message.token);
    shared.callbacks.expect(token, message.event, state);
    session.event_poller.when(event, state, move |status| {
        shared.upcalls.push(PendingCallback { token, status, text: Vec::new() });
        shared.callbacks.complete(token);
    })?;
    Ok(message::kdclEventCallbackReply {})
}

/// Waits for all events of a list.
pub(crate) fn kdclWait(
    session: &mut Session,
    _: &FrameHead,
    message: message::kdclWait<'_>,
) -> Result<ExecutorCall<message::kdclWaitReply>, Fault> {
    let ids: Vec<u32> = Arguments::new("kdclWait", message.events).list("events")?;
    let first: Object<cl_event> = session.shared.objects.get(*ids.first().ok_or(Code::INVALID_VALUE)?)?;
    let held: Vec<HeldEvent> =
        ids.iter().map(|id| HeldEvent::of(&session.shared.objects, *id)).collect::<Result<_, _>>()?;
    // All events must belong to one driver, which waits for them.
    if held.iter().any(|event| !ptr::eq(event.api(), first.api)) {
        return Err(Code::INVALID_CONTEXT.into());
    }
    // The times of an event from before a restore are known already.
    let known = ids.first().and_then(|id| session.event_times.get(id)).map(listed);
    let is_asked = message.wanted != 0 && held.len() == 1;
    if session.may_query() {
        held.iter().for_each(begin);
        session.set_awaited_events(held.clone());
    }
    Ok(Box::new(move |_| {
        let events: Vec<cl_event> = held.iter().map(HeldEvent::handle).collect();
        wait(&events, first.api)?;
        let times = if is_asked { known.unwrap_or_else(|| listed(&times(&first))) } else { Vec::new() };
        Ok(message::kdclWaitReply { times })
    }))
}

/// Flushes the queue of an event's command so that it begins: the driver expects that of a thread that waits. A user event has no
/// queue.
fn begin(event: &HeldEvent) {
    let api = event.api();
    let queue = ask::<usize>(|size, out| {
        driver!(api, clGetEventInfo(event.handle(), EVENT_COMMAND_QUEUE, size, out, ptr::null_mut()))
    });
    if let Ok(queue) = queue
        && queue != 0
    {
        driver!(api, clFlush(cl_command_queue(ptr::with_exposed_provenance_mut(queue))));
    }
}

/// Flushes a queue, so that its commands begin.
pub(crate) fn kdclFlush(session: &mut Session, _: &FrameHead, message: message::kdclFlush) -> Result<(), Fault> {
    let queue: Object<cl_command_queue> = session.shared.objects.get(message.queue)?;
    Ok(driver!(queue.api, clFlush(queue.handle)).ok()?)
}

/// Waits for the last blocking write of a context that the program takes for done. Earlier writes are in the same queue, which
/// keeps their order.
pub(crate) fn kdclWaitWrite(
    session: &mut Session,
    _: &FrameHead,
    message: message::kdclWaitWrite,
) -> Result<ExecutorCall<message::kdclWaitWriteReply>, Fault> {
    let event = session.taken_for_done.remove(&message.context);
    Ok(Box::new(move |_| event.map_or(Ok(()), |event| event.wait()).map(|()| message::kdclWaitWriteReply {})))
}

/// Waits until the queue is empty.
pub(crate) fn kdclFinish(
    session: &mut Session,
    _: &FrameHead,
    message: message::kdclFinish,
) -> Result<ExecutorCall<message::kdclFinishReply>, Fault> {
    let queue: Object<cl_command_queue> = session.shared.objects.get(message.queue)?;
    let held = session.shared.objects.hold::<cl_command_queue>(message.queue)?;
    if session.may_poll()
        && let Ok(marker) = mark(&queue, &held)
    {
        session.outlast(marker.clone());
        session.set_awaited_events(vec![marker]);
    }
    Ok(Box::new(move |_| {
        let code = driver!(queue.api, clFinish(queue.handle));
        drop(held);
        code.ok().map(|()| message::kdclFinishReply {})
    }))
}

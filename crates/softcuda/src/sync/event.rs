//! Events: points of a stream, with the time at which they were reached.
//!
//! A record makes a new mark, which the event stands for from then on. A thread that waited for the old mark still does.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

use katydid_cuda_sys::{CUevent, CUipcEventHandle, CUresult, CUstream, event_flags, stream_flags};
use katydid_driver_rules::stream::check_event_flags;

use crate::context::contexts;
use crate::context::state::Context;
use crate::ffi::Outcome;
use crate::memory::ipc_event_counters::IpcEventCounters;
use crate::process::handles::{Registry, new_handle};
use crate::process::state;
use crate::sync::job::StreamJob;
use crate::sync::stream::{LiveContext, Stream};
use crate::sync::streams;

/// A point that will be reached once.
#[derive(Default)]
pub(crate) struct EventMark {
    time: Mutex<Option<Instant>>,
    reached: Condvar,
    /// For an event of several processes: its counters, and the number of this mark.
    shared: Option<(Arc<IpcEventCounters>, u64)>,
}

impl EventMark {
    /// Marks the point as reached now.
    pub(crate) fn reach(&self) {
        *self.time.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        self.reached.notify_all();
        if let Some((marks, number)) = &self.shared {
            marks.reach(*number);
        }
    }

    /// Returns when the point was reached. For a point that another process may reach, it is the present: no caller needs the
    /// exact time.
    pub(crate) fn time(&self) -> Option<Instant> {
        if let Some((marks, number)) = &self.shared {
            return marks.is_reached(*number).then(Instant::now);
        }
        *self.time.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the point is reached.
    pub(crate) fn wait(&self) {
        if let Some((marks, number)) = &self.shared {
            return marks.wait(*number);
        }
        let time = self.time.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.reached.wait_while(time, |time| time.is_none()).unwrap_or_else(PoisonError::into_inner));
    }
}

/// An event, which stands for the mark of its latest record.
pub(crate) struct Event {
    /// Handle that programs know the event by.
    pub(crate) handle: usize,
    flags: u32,
    /// Handle of that context, to look it up.
    context_handle: usize,
    /// Id of its context. A mark of an ended context counts as reached.
    context: u64,
    mark: Mutex<Option<Arc<EventMark>>>,
    /// Counters that are shared with other processes.
    shared: Option<Arc<IpcEventCounters>>,
}

/// Events whose handle is alive.
static EVENTS: Registry<Event> = Registry::new();

impl Event {
    /// Returns the mark of the latest record.
    pub(crate) fn mark(&self) -> Option<Arc<EventMark>> {
        if let Some(marks) = &self.shared {
            let last = marks.last();
            let mark = || Arc::new(EventMark { shared: Some((Arc::clone(marks), last)), ..EventMark::default() });
            return (last > 0).then(mark);
        }
        self.mark.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Fails with the sticky error of its context, if there is one.
    pub(crate) fn healthy(&self) -> Outcome {
        self.context().map_or(Ok(()), |context| context.healthy())
    }

    /// Returns whether it was ever recorded in a stream.
    pub(crate) fn was_recorded(&self) -> bool {
        self.mark().is_some()
    }

    /// Makes a new mark, for which the event stands from now on. The stream that records it reaches it.
    pub(crate) fn renew(&self) -> Arc<EventMark> {
        let shared = self.shared.as_ref().map(|marks| (Arc::clone(marks), marks.record()));
        let mark = Arc::new(EventMark { shared, ..EventMark::default() });
        *self.mark.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&mark));
        mark
    }

    /// `cuEventRecord`.
    pub(crate) fn record(&self, stream: &Arc<Stream>) -> Outcome {
        if stream.context()?.id != self.context {
            return Err(CUresult::ERROR_INVALID_HANDLE);
        }
        // The event gets the new mark before the job can reach it: a query in between must return "not ready".
        let mark = self.renew();
        let job = StreamJob::always(move |_| {
            mark.reach();
            Ok(())
        });
        stream.submit(job.short()).map(drop)
    }

    /// `cuCtxRecordEvent`: reached when all streams of its context have finished their present work.
    pub(crate) fn record_all(&self, context: &Arc<LiveContext>, green: usize) -> Outcome {
        if context.id != self.context {
            return Err(CUresult::ERROR_INVALID_HANDLE);
        }
        let tickets = context.tickets(|stream| stream.is_of(green));
        let mark = self.renew();
        // A separate stream, whose handle ends here: it waits on a thread that no other stream needs.
        let waiter = streams::create(context, 0, stream_flags::NON_BLOCKING, 0)?;
        let job = StreamJob::always(move |_| {
            tickets.iter().for_each(|(stream, ticket)| stream.wait(*ticket));
            mark.reach();
            Ok(())
        });
        waiter.submit(job)?;
        streams::destroy(CUstream(std::ptr::without_provenance_mut(waiter.handle)))
    }

    /// `cuStreamWaitEvent`: the stream goes on once the latest record so far is reached.
    pub(crate) fn hold_back(&self, stream: &Arc<Stream>) -> Outcome {
        let Some(mark) = self.mark().filter(|mark| mark.time().is_none()) else { return Ok(()) };
        let job = StreamJob::always(move |_| {
            mark.wait();
            Ok(())
        });
        stream.submit(job).map(drop)
    }

    /// `cuEventQuery`: an event that was never recorded counts as reached.
    pub(crate) fn query(&self) -> Outcome {
        self.healthy()?;
        let reached = self.mark().is_none_or(|mark| mark.time().is_some());
        if reached { Ok(()) } else { Err(CUresult::ERROR_NOT_READY) }
    }

    /// Waits for the latest record so far.
    pub(crate) fn wait(&self) {
        if let Some(mark) = self.mark() {
            mark.wait();
        }
    }

    /// Returns its context, if that lives.
    pub(crate) fn context(&self) -> Option<Arc<LiveContext>> {
        contexts::living(self.context_handle)
    }

    /// Returns when it was reached. Fails with `INVALID_HANDLE` if it has no times or was never recorded, with `NOT_READY`
    /// before.
    fn time(&self) -> Outcome<Instant> {
        if self.flags & event_flags::DISABLE_TIMING != 0 {
            return Err(CUresult::ERROR_INVALID_HANDLE);
        }
        let mark = self.mark().ok_or(CUresult::ERROR_INVALID_HANDLE)?;
        mark.time().ok_or(CUresult::ERROR_NOT_READY)
    }
}

/// `cuEventElapsedTime`, in milliseconds; negative if `end` came first.
pub(crate) fn elapsed(start: &Event, end: &Event) -> Outcome<f32> {
    if start.context != end.context {
        return Err(CUresult::ERROR_INVALID_HANDLE);
    }
    // An unusable event is reported before one that is only not ready.
    let (from, to) = match (start.time(), end.time()) {
        (Err(code), other) if code != CUresult::ERROR_NOT_READY || other.is_ok() => return Err(code),
        (from, to) => {
            let to = to?;
            (from?, to)
        }
    };
    let milliseconds = |time: std::time::Duration| time.as_secs_f64() * 1e3;
    let forward = to.checked_duration_since(from).map(milliseconds);
    Ok(forward.unwrap_or_else(|| -milliseconds(from.duration_since(to))) as f32)
}

/// `cuEventCreate`.
pub(crate) fn create(context: &Context, flags: u32) -> Outcome<Arc<Event>> {
    check_event_flags(flags)?;
    let interprocess = flags & event_flags::INTERPROCESS != 0;
    let shared = if interprocess { Some(IpcEventCounters::new()?) } else { None };
    Ok(register(context, flags, shared))
}

fn register(context: &Context, flags: u32, shared: Option<IpcEventCounters>) -> Arc<Event> {
    let (handle, mark, shared) = (new_handle(), Mutex::new(None), shared.map(Arc::new));
    let event = Event { handle, flags, context_handle: context.handle, context: context.id, mark, shared };
    let event = Arc::new(event);
    EVENTS.insert(event.handle, Arc::clone(&event));
    event
}

/// `cuIpcGetEventHandle` of an event that was made for other processes.
pub(crate) fn handle_of(event: &Event) -> Outcome<CUipcEventHandle> {
    event.shared.as_ref().ok_or(CUresult::ERROR_INVALID_HANDLE)?.handle()
}

/// `cuIpcOpenEventHandle`: an event that stands for another process's.
pub(crate) fn open(context: &Context, handle: &CUipcEventHandle) -> Outcome<Arc<Event>> {
    let shared = IpcEventCounters::open(handle)?;
    Ok(register(context, event_flags::INTERPROCESS | event_flags::DISABLE_TIMING, Some(shared)))
}

/// The event behind a handle.
pub(crate) fn resolve(handle: CUevent) -> Outcome<Arc<Event>> {
    state::ready()?;
    EVENTS.get(handle.address() as usize).ok_or(CUresult::ERROR_INVALID_HANDLE)
}

/// `cuEventDestroy`: ends the handle. Work that waits for its mark still does.
pub(crate) fn destroy(handle: CUevent) -> Outcome {
    EVENTS.remove(handle.address() as usize).map(drop).ok_or(CUresult::ERROR_INVALID_HANDLE)
}

/// Ends the handles of a context's events.
pub(crate) fn forget(context: u64) {
    EVENTS.remove_if(|event| event.context == context);
}

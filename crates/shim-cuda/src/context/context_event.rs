//! Events that stand for all streams of a context.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use katydid_cuda_sys::{CUcontext, CUevent, CUresult};
use katydid_graph::UncapturedCall;
use katydid_wire::message::{cuCtxRecordEvent, cuCtxWaitEvent};

use crate::ffi::handle::object;
use crate::graph::model;
use crate::process::session::shim;

/// Records everything that the context's streams hold now; the event must belong to the context.
pub(crate) fn record(context: CUcontext, event: CUevent) -> Result<(), CUresult> {
    let (context, event) = (object(context)?, object(event)?);
    context.check_active()?;
    if event.context.slot != Arc::clone(&context).owner().slot {
        return Err(CUresult::ERROR_INVALID_HANDLE);
    }
    model::of_process().forbid(UncapturedCall::Context(context.slot.handle))?;
    event.was_recorded.store(true, Ordering::Relaxed);
    shim()?.session.enqueue(context.wire(), &cuCtxRecordEvent { hCtx: context.wire(), hEvent: event.wire() })
}

/// Makes all later work of the context's streams wait for the event.
pub(crate) fn wait(context: CUcontext, event: CUevent) -> Result<(), CUresult> {
    let (context, handle) = (object(context)?, event);
    let event = object(event)?;
    context.check_active()?;
    model::of_process().check_event(handle)?;
    model::of_process().forbid(UncapturedCall::Context(context.slot.handle))?;
    shim()?.session.enqueue(context.wire(), &cuCtxWaitEvent { hCtx: context.wire(), hEvent: event.wire() })
}

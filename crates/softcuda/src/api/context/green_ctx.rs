//! Green contexts, and the parts of devices from which they are made.

#![expect(unsafe_code, reason = "functions of the driver API take raw pointers")]

use std::sync::Arc;

use katydid_cuda_sys::{CUcontext, CUdevResource, CUdevResourceDesc, CUevent, CUgreenCtx, CUresult, CUstream};
use katydid_driver_rules::device::check_resource_type;
use katydid_driver_rules::stream::check_green_flags;
use katydid_graph::UncapturedCall;

use super::current::{as_handle, number};
use crate::context::green_ctx::{self, SmResource};
use crate::context::stack;
use crate::ffi::{In, MaybeOut, Out, Outcome, api};
use crate::graphs;
use crate::process::{device, state};
use crate::sync::stream::LiveContext;
use crate::sync::{event, streams};

/// Most resources of a description.
const MAX_RESOURCES: u32 = 1024;

fn as_green(handle: usize) -> CUgreenCtx {
    CUgreenCtx(std::ptr::without_provenance_mut(handle))
}

fn green_number(green: CUgreenCtx) -> usize {
    green.address() as usize
}

/// Returns the green context of a stream's work, 0 for none. For a default stream, the current one counts.
fn green_of(stream: CUstream) -> Outcome<usize> {
    let stream_record = streams::resolve(stream)?;
    Ok(if stream_record.is_default() { green_ctx::or_none(stack::handle()) } else { stream_record.green() })
}

/// Returns the green context of a call and its primary context, which must be healthy.
fn checked(green: CUgreenCtx, event: CUevent) -> Outcome<(usize, Arc<LiveContext>)> {
    let green = green_ctx::resolve(green_number(green))?;
    let context = green.context()?;
    graphs::of_process().check_event(event)?;
    graphs::of_process().forbid(UncapturedCall::Context(context.handle))?;
    Ok((green.handle, context))
}

api! {
    /// Returns all multiprocessors of a device.
    fn cuDeviceGetDevResource(ordinal: i32, resource: Out<CUdevResource>, kind: u32) {
        state::ready()?;
        let device = device::get(ordinal)?;
        check_resource_type(kind)?;
        resource.set(SmResource::of_device(device).resource());
    }

    /// Returns the resource of a green context, else of the context's device.
    fn cuCtxGetDevResource(context: CUcontext, resource: Out<CUdevResource>, kind: u32) {
        state::ready()?;
        check_resource_type(kind)?;
        resource.set(green_ctx::part_of(number(context))?.resource());
    }

    /// Returns the resource that the context was made with.
    fn cuGreenCtxGetDevResource(context: CUgreenCtx, resource: Out<CUdevResource>, kind: u32) {
        let green = green_ctx::resolve(green_number(context))?;
        check_resource_type(kind)?;
        resource.set(green.part().resource());
    }

    /// Splits a resource. Without an output for the parts it returns only their number.
    fn cuDevSmResourceSplitByCount(
        result: *mut CUdevResource,
        count: *mut u32,
        input: In<CUdevResource>,
        remaining: MaybeOut<CUdevResource>,
        flags: u32,
        least: u32
    ) {
        state::ready()?;
        if count.is_null() {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        // SAFETY: not null, so the caller's count.
        let wanted = (!result.is_null()).then(|| unsafe { count.read_unaligned() });
        if wanted == Some(0) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let (parts, remainder) = SmResource::read(&input.0)?.split(wanted, flags, least)?;
        for (at, part) in parts.iter().enumerate().filter(|_| wanted.is_some()) {
            // SAFETY: the caller has room for as many as it said, and no more were made.
            unsafe { result.add(at).write_unaligned(part.resource()) };
        }
        // SAFETY: as above.
        unsafe { count.write_unaligned(parts.len() as u32) };
        remaining.set(remainder.resource());
    }

    /// Describes resources for a new context: parts of the same split, or a single one.
    fn cuDevResourceGenerateDesc(description: Out<CUdevResourceDesc>, resources: *mut CUdevResource, count: u32) {
        state::ready()?;
        if resources.is_null() || !(1..=MAX_RESOURCES).contains(&count) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        // SAFETY: the caller's array has `count` entries.
        let resource_at = |at: u32| SmResource::read(&unsafe { resources.add(at as usize).read_unaligned() });
        let parts = (0..count).map(resource_at).collect::<Outcome<Vec<_>>>()?;
        description.set(CUdevResourceDesc(std::ptr::without_provenance_mut(green_ctx::describe(&parts)?)));
    }

    /// Creates a green context and retains the primary one. It does not become current.
    fn cuGreenCtxCreate(made: Out<CUgreenCtx>, description: CUdevResourceDesc, ordinal: i32, flags: u32) {
        state::ready()?;
        let device = device::get(ordinal)?;
        made.set(as_green(green_ctx::create(description.address() as usize, device, flags)?));
    }

    /// Destroys a green context; the handles of its streams end with it.
    fn cuGreenCtxDestroy(context: CUgreenCtx) {
        state::ready()?;
        green_ctx::destroy(green_number(context))?;
    }

    /// Returns the handle of the green context as a context's.
    fn cuCtxFromGreenCtx(context: Out<CUcontext>, green: CUgreenCtx) {
        context.set(as_handle(green_ctx::resolve(green_number(green))?.handle));
    }

    /// Records an event in all streams of the green context.
    fn cuGreenCtxRecordEvent(context: CUgreenCtx, event: CUevent) {
        let (green, context) = checked(context, event)?;
        event::resolve(event)?.record_all(&context, green)?;
    }

    /// Makes all streams of the green context wait for an event.
    fn cuGreenCtxWaitEvent(context: CUgreenCtx, event: CUevent) {
        let (green, context) = checked(context, event)?;
        let event = event::resolve(event)?;
        let streams = context.streams();
        streams.iter().filter(|stream| stream.is_of(green)).try_for_each(|stream| event.hold_back(stream))?;
    }

    /// Returns the green context of a stream, null if it has none.
    fn cuStreamGetGreenCtx(stream: CUstream, context: Out<CUgreenCtx>) {
        context.set(as_green(green_of(stream)?));
    }

    /// Returns the primary context of a stream, and its green one if there is one.
    fn cuStreamGetCtx_v2(stream: CUstream, context: Out<CUcontext>, green: Out<CUgreenCtx>) {
        let (owner, part) = (streams::resolve(stream)?.context()?, green_of(stream)?);
        context.set(as_handle(owner.handle));
        green.set(as_green(part));
    }

    /// Creates a stream, which never waits for default streams.
    fn cuGreenCtxStreamCreate(made: Out<CUstream>, context: CUgreenCtx, flags: u32, priority: i32) {
        let green = green_ctx::resolve(green_number(context))?;
        check_green_flags(flags)?;
        let stream = streams::create(&green.context()?, green.handle, flags, priority)?;
        made.set(CUstream(std::ptr::without_provenance_mut(stream.handle)));
    }

    /// Returns an id that no other green context has had.
    fn cuGreenCtxGetId(context: CUgreenCtx, id: Out<u64>) {
        id.set(green_ctx::resolve(green_number(context))?.id);
    }
}
